#pragma once

#include <deque>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::agent {

/// Whether and when a failed group is started again. Time comes in as an argument.
class RestartBudget {
 public:
  explicit RestartBudget(const RestartPolicy& policy) : policy_(policy) {}

  /// May the group restart after a first failure with this status? Does not spend anything.
  [[nodiscard]] bool allows(const ExitStatus& cause, Clock::time_point now) const;
  /// Takes one restart. Gives the pause before it: --restart-backoff, doubled for each restart up to 60 s. With
  /// --restart-window the doubling starts anew when a whole window has passed without a restart.
  Milliseconds spend(Clock::time_point now);
  /// Restarts in all.
  [[nodiscard]] int used() const { return used_; }

 private:
  [[nodiscard]] int counted(Clock::time_point now) const;

  const RestartPolicy policy_;
  int used_ = 0;
  int doublings_ = 0;
  std::deque<Clock::time_point> recent_;
};

/// Exit codes that a policy names are compared with real exit codes only; a signal is never among them.
[[nodiscard]] bool is_success(const ExitStatus& status, const RestartPolicy& policy);

}  // namespace ddrun::agent
