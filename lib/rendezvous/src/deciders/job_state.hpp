#pragma once

#include <map>
#include <optional>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "restart_budget.hpp"
#include "settings.hpp"

namespace ddrun::rendezvous {

/// State of a job that outlives a round. serialize() reaches the coordinator of the next term by the agents' claims; it
/// learns members and their node ranks from JOIN, and the transport has the secret.
struct JobState {
  std::string job_id;
  std::string version;  ///< of ddrun, the same on all agents
  Settings raw_settings;
  JobSettings settings;
  bool has_node_ranks = false;  ///< the first agent has an explicit node rank
  RestartBudget budget{RestartPolicy{}};
  Round round = 0;                              ///< last begun
  bool started = false;                         ///< workers have run
  std::map<std::string, int> failures_of_host;  ///< only with node_max_failures
  int coordinator_node_rank = -1;               ///< of the coordinator's own machine in that round; -1: none
  std::optional<VerdictMessage> verdict;        ///< set once the job has ended
  std::string last_merged;                      ///< the last merged text; thousands of agents send the same

  /// The first agent defines the job.
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

  /// What JOIN does not contain, as JSON: PROTOCOL.md, section 10. Ages, not times, since clocks of machines differ.
  [[nodiscard]] std::string serialize(Clock::time_point now) const;
  /// Replaces the state by that of another coordinator. False, without a change, for invalid text.
  [[nodiscard]] bool restore(const std::string& text, Clock::time_point now);
  /// Takes the maximum of own and given counts: restarts, and failures of each host. Invalid text is ignored.
  void merge(const std::string& text, Clock::time_point now);
};

}  // namespace ddrun::rendezvous
