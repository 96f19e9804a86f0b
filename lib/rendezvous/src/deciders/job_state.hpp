#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "settings.hpp"

namespace ddrun::rendezvous {

/// Decides whether and when a failed job restarts. Time is passed in.
class RestartBudget {
 public:
  explicit RestartBudget(RestartPolicy policy) : policy_(std::move(policy)) {}

  /// Whether a restart is left.
  [[nodiscard]] bool any_left(Clock::time_point now) const;
  /// Number of restarts left.
  [[nodiscard]] int left(Clock::time_point now) const { return policy_.max_restarts - counted(now); }
  /// Pause before the next restart: --restart-backoff, doubled with each restart up to 60 s. With --restart-window the
  /// doubling starts over after a window without a restart.
  [[nodiscard]] Milliseconds pause(Clock::time_point now) const;
  /// Uses one restart; returns the pause before it.
  Milliseconds spend(Clock::time_point now);
  /// Restarts so far.
  [[nodiscard]] int used() const { return used_; }

  /// State for another coordinator, whose clock differs.
  struct Spent {
    int used = 0;
    int doublings = 0;
    std::vector<Milliseconds> ages;  ///< of the restarts within the window, oldest first
  };
  [[nodiscard]] Spent spent(Clock::time_point now) const;
  void restore(const Spent& spent, Clock::time_point now);

 private:
  [[nodiscard]] int counted(Clock::time_point now) const;

  RestartPolicy policy_;
  int used_ = 0;
  int doublings_ = 0;
  std::deque<Clock::time_point> recent_;
};

inline int RestartBudget::counted(Clock::time_point now) const {
  if (!policy_.window) return used_;
  return static_cast<int>(
      std::count_if(recent_.begin(), recent_.end(), [&](auto at) { return now - at < *policy_.window; }));
}

inline bool RestartBudget::any_left(Clock::time_point now) const { return left(now) > 0; }

inline Milliseconds RestartBudget::pause(Clock::time_point now) const {
  const int doublings = policy_.window && counted(now) == 0 ? 0 : doublings_;
  constexpr Milliseconds max_pause{60'000};
  const Milliseconds pause = std::min<Milliseconds>(policy_.backoff * (1LL << std::min(doublings, 20)), max_pause);
  // A configured pause above the maximum is kept.
  return std::max(pause, policy_.backoff);
}

inline Milliseconds RestartBudget::spend(Clock::time_point now) {
  const Milliseconds before_it = pause(now);
  if (policy_.window) {
    while (!recent_.empty() && now - recent_.front() >= *policy_.window) recent_.pop_front();
    if (recent_.empty()) doublings_ = 0;
    recent_.push_back(now);
  }
  ++used_;
  ++doublings_;
  return before_it;
}

inline RestartBudget::Spent RestartBudget::spent(Clock::time_point now) const {
  Spent spent{used_, doublings_, {}};
  for (const auto at : recent_) spent.ages.push_back(std::chrono::duration_cast<Milliseconds>(now - at));
  return spent;
}

inline void RestartBudget::restore(const Spent& spent, Clock::time_point now) {
  used_ = spent.used;
  doublings_ = spent.doublings;
  recent_.clear();
  for (const Milliseconds age : spent.ages) recent_.push_back(now - age);
}

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
