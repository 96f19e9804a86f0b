#pragma once

#include <map>
#include <optional>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "restart_budget.hpp"
#include "settings.hpp"

namespace ddrun::rendezvous {

/// All that outlives a round. The coordinator of the next term gets what text() says by the agents' claims; who is
/// there it learns from them as they join, with the node ranks that they had, and the secret the transport holds.
struct JobState {
  std::string job_id;
  std::string version;  ///< of ddrun, the same on all agents
  Settings raw_settings;
  JobSettings settings;
  bool has_node_ranks = false;  ///< the first agent was given one by its user
  RestartBudget budget{RestartPolicy{}};
  Round round = 0;                              ///< the last one that was begun
  bool started = false;                         ///< workers ran once
  std::map<std::string, int> failures_of_host;  ///< kept only with node_max_failures
  int coordinator_node_rank = -1;               ///< the node rank of the coordinator's own machine in that round
  std::optional<VerdictMessage> verdict;        ///< the job has ended
  std::string last_merged;                      ///< the last text; thousands of agents have the same

  /// The job is that of its first agent.
  void adopt(const Join& first, const JobSettings& parsed) {
    job_id = first.job_id;
    version = first.version;
    raw_settings = first.settings;
    settings = parsed;
    has_node_ranks = first.node_rank >= 0;
    budget = RestartBudget(settings.restart);
    last_merged.clear();
  }
  [[nodiscard]] bool excluded(const std::string& host) const {
    if (settings.node_max_failures == 0) return false;
    const auto found = failures_of_host.find(host);
    return found != failures_of_host.end() && found->second >= settings.node_max_failures;
  }

  /// What agents cannot tell by themselves, as JSON: PROTOCOL.md, section 10. Clocks of machines differ: ages, not
  /// times.
  [[nodiscard]] std::string serialize(Clock::time_point now) const;
  /// Takes over what another coordinator has said by text(). False, and nothing is taken, if it makes no sense.
  [[nodiscard]] bool restore(const std::string& text, Clock::time_point now);
  /// The same, but nothing that is known already is forgotten: of restarts the most that any coordinator has counted,
  /// as of the failures of each host.
  void merge(const std::string& text, Clock::time_point now);
};

}  // namespace ddrun::rendezvous
