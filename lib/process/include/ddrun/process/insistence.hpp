#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <utility>

#include "ddrun/base/duration.hpp"

namespace ddrun::process {

/// Tells a person who repeats a signal that ends the job, and so means "at once", from the programs that ask once but
/// send two: GNU timeout (to the process and to its group), a closed terminal (SIGHUP from the shell and from the
/// kernel), systemd (SIGTERM, then SIGHUP). This rule is here and nowhere else; guard, sweeper and agent follow it.
class Insistence {
 public:
  /// Programs that send a signal twice do so within this time.
  static constexpr std::chrono::seconds pause{1};

  /// To be told each ending signal as it comes; `sender`: 0 if the kernel sent it. True if it repeats an earlier one by
  /// intention: both came from the terminal's keys, or both are the same signal and `pause` lies between the first and
  /// this one. SIGHUP is never repeated by a person.
  bool is_meant(int signal, pid_t sender, Clock::time_point now) {
    const bool key = sender == 0 && (signal == SIGINT || signal == SIGQUIT);
    const bool second_key = key && std::exchange(key_seen_, key_seen_ || key);
    Clock::time_point& first = first_[static_cast<std::size_t>(signal)];
    const bool known = first != Clock::time_point{};
    if (!known) first = now;
    return second_key || (known && signal != SIGHUP && now - first >= pause);
  }

 private:
  bool key_seen_ = false;
  std::array<Clock::time_point, NSIG> first_{};  ///< the epoch: has not come
};

}  // namespace ddrun::process
