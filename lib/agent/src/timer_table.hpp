#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddrun::agent {

/// A line of the watchdog's FIFO, as the FileTimerClient of torch.distributed.elastic.timer writes it:
///
///     {"version": 1, "pid": 4711, "scope_id": "train.py#41", "expiration_time": 1795223473.5, "signal": 9}
struct TimerRequest {
  pid_t pid = 0;
  std::string scope;
  double expires = 0;      ///< seconds since the epoch; negative: the timer is released
  int signal = 0;          ///< what the process gets when it expires; 0 or less: nothing
  std::uint64_t born = 0;  ///< tells it from a later process of the same number; not in the line
};

/// Nothing if the line is none of these. A writer that died in the middle of a line leaves its half in front of the
/// next one, which is found behind it.
[[nodiscard]] std::optional<TimerRequest> parse_timer_request(std::string_view line);

/// The timers that run, by process and scope. Decides nothing about processes and knows no clock.
class TimerTable {
 public:
  static constexpr std::size_t most_timers = 4096;

  /// Sets a timer, sets it anew or releases it. False: there are too many, and it was not taken.
  bool take(TimerRequest request);

  /// When the first one expires; nothing if none runs.
  [[nodiscard]] std::optional<double> next() const;

  /// One for each process with an expired timer: its first that has a signal, else its first. All timers of these
  /// processes are gone then.
  [[nodiscard]] std::vector<TimerRequest> take_expired(double now);

  /// Drops timers for whose process `gone` says true.
  template <class Gone>
  void drop(Gone gone) {
    std::erase_if(timers_, [&](const auto& entry) { return gone(entry.second); });
  }
  /// All expire so many seconds later.
  void put_off(double seconds) {
    for (auto& entry : timers_) entry.second.expires += seconds;
  }
  void clear() { timers_.clear(); }
  [[nodiscard]] std::size_t size() const { return timers_.size(); }

 private:
  std::map<std::pair<pid_t, std::string>, TimerRequest> timers_;
};

}  // namespace ddrun::agent
