#pragma once

#include <deque>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// Whether and when a failed group is started again: of one machine or of the whole job. Time comes in as an argument.
class RestartBudget {
 public:
  explicit RestartBudget(RestartPolicy policy) : policy_(std::move(policy)) {}

  /// May the group restart after a first failure with this status? Does not spend anything.
  [[nodiscard]] bool allows(const ExitStatus& cause, Clock::time_point now) const;
  /// Is a restart left, whatever the cause? Does not spend anything.
  [[nodiscard]] bool any_left(Clock::time_point now) const;
  /// The pause before the next restart: --restart-backoff, doubled for each restart up to 60 s. With --restart-window
  /// the doubling starts anew when a whole window has passed without a restart. Does not spend anything.
  [[nodiscard]] Milliseconds pause(Clock::time_point now) const;
  /// Takes one restart. Gives the pause before it.
  Milliseconds spend(Clock::time_point now);
  /// Restarts in all.
  [[nodiscard]] int used() const { return used_; }

 private:
  [[nodiscard]] int counted(Clock::time_point now) const;

  RestartPolicy policy_;
  int used_ = 0;
  int doublings_ = 0;
  std::deque<Clock::time_point> recent_;
};

}  // namespace ddrun::rendezvous
