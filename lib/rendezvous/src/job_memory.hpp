#pragma once

#include <map>
#include <optional>
#include <string>

#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/rendezvous/restart_budget.hpp"
#include "job_settings.hpp"

namespace ddrun::rendezvous {

/// All that outlives a round. A coordinator that takes over from another would have to be given this (and the secret,
/// which the transport holds); who is there it learns from the agents as they join, with the node ranks that they had.
struct JobMemory {
  std::string job_id;
  std::string version;  ///< of ddrun, the same on all agents
  Settings settings;
  JobSettings meaning;
  RestartBudget budget{RestartPolicy{}};
  Round round = 0;                              ///< the last one that was begun
  bool started = false;                         ///< workers ran once
  std::map<std::string, int> failures_of_host;  ///< kept only with node_max_failures
  std::optional<VerdictMessage> verdict;        ///< the job has ended

  /// The job is that of its first agent.
  void adopt(const Join& first, const JobSettings& settings_meaning);
  [[nodiscard]] bool excluded(const std::string& host) const;
};

}  // namespace ddrun::rendezvous
