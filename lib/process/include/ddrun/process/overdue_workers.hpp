#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"

namespace ddrun::process {

/// Decides when the sweeper kills the workers of an agent that stands still (SIGSTOP, a debugger) while the job goes on
/// without it: no earlier than the agent would have killed them, and before the next round begins. The agent renews the
/// deadline as long as it runs. Knows no process, page or clock.
///
/// A deadline that has passed is no proof where the whole machine stood still: the agent, which goes on at the same
/// moment, may renew it. So it is looked at once more, unless the agent alone is seen to be stopped.
class OverdueWorkers {
 public:
  enum class Clocks {
    none,   ///< nothing is due
    sight,  ///< `at` by CLOCK_MONOTONIC
    lead,   ///< `at` by CLOCK_BOOTTIME: a lease expires elsewhere
  };
  /// By one of the clocks, since its epoch.
  struct Deadline {
    Clocks clock = Clocks::none;
    std::chrono::nanoseconds at{0};
    std::chrono::nanoseconds interval{0};  ///< of heartbeats
    std::uint32_t group = 0;               ///< number of the workers: others may have been killed for the same time
    bool operator==(const Deadline&) const = default;
  };

  /// Shared memory: written by threads of the agent, read by the sweeper; kills the other way round.
  struct Page {
    std::atomic<Clocks> clock{Clocks::none};
    std::atomic<std::int64_t> sight_ns{0};
    std::atomic<std::int64_t> lead_ns{0};  ///< 0: not known yet
    std::atomic<std::int64_t> interval_ns{0};
    std::atomic<std::uint32_t> groups{0};  ///< so many have begun
    /// When one of them was written last, by CLOCK_MONOTONIC.
    std::atomic<std::int64_t> written_ns{0};
    /// How often the sweeper has killed the workers.
    std::atomic<std::uint32_t> kills{0};
    /// `written_ns` at the last kill.
    std::atomic<std::int64_t> stood_still_since_ns{0};

    [[nodiscard]] Deadline deadline() const {
      const Clocks which = clock;
      const std::int64_t at = which == Clocks::lead ? lead_ns : sight_ns;
      if (which == Clocks::none || at == 0) return {};
      return {which, std::chrono::nanoseconds(at), std::chrono::nanoseconds(interval_ns), groups};
    }
  };

  struct Now {
    std::chrono::nanoseconds monotonic, boot;
    char agent_state;  ///< as in /proc/PID/stat; '?' if it cannot be read
  };

  /// To be called when the agent has written a first or an earlier deadline, and at next_look(). True: kill the workers
  /// now.
  [[nodiscard]] bool look(const Deadline& deadline, const Now& now) {
    if (deadline.clock == Clocks::none || deadline == killed_for_) return stop_looking();
    const auto time = deadline.clock == Clocks::lead ? now.boot : now.monotonic;
    const auto due = deadline.at + shutdown::sweeper_margin;
    if (!next_look_ || clock_ != deadline.clock) {
      clock_ = deadline.clock;
      return look_at(due);
    }
    if (time < *next_look_) return suspected_ || due >= *next_look_ ? false : look_at(due);
    if (time < due) {
      suspected_.reset();
      return look_at(due);
    }
    const bool alone = (now.agent_state == 'T' || now.agent_state == 't') && time - *next_look_ < deadline.interval;
    if (deadline.clock == Clocks::lead || alone || suspected_ == deadline) {
      killed_for_ = deadline;
      stop_looking();
      return true;
    }
    suspected_ = deadline;
    return look_at(time + 2 * deadline.interval + second_look_margin);
  }

  /// By clock().
  [[nodiscard]] std::optional<std::chrono::nanoseconds> next_look() const { return next_look_; }
  [[nodiscard]] Clocks clock() const { return clock_; }

 private:
  static constexpr Milliseconds second_look_margin{500};

  bool look_at(std::chrono::nanoseconds at) {
    next_look_ = at;
    return false;
  }
  bool stop_looking() {
    next_look_.reset();
    suspected_.reset();
    return false;
  }

  Clocks clock_ = Clocks::none;
  std::optional<std::chrono::nanoseconds> next_look_;
  std::optional<Deadline> suspected_;  ///< passed when it was looked at last
  std::optional<Deadline> killed_for_;
};

}  // namespace ddrun::process
