#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/system_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "job_record.hpp"
#include "participant.hpp"
#include "worker_group.hpp"

namespace ddrun::agent {

/// A line of the watchdog's FIFO, the format of torch.distributed.elastic.timer's FileTimerClient:
///
///     {"version": 1, "pid": 4711, "scope_id": "train.py#41", "expiration_time": 1795223473.5, "signal": 9}
struct TimerRequest {
  pid_t pid = 0;
  std::string scope;
  double expires = 0;            ///< seconds since the epoch; negative: the timer is released
  int signal = 0;                ///< sent when it expires; 0 or less: none
  std::uint64_t start_time = 0;  ///< of the process, to detect a reused pid; not in the line
};

/// Nothing if the line is no request. After half a line of a writer that died, the request behind it is found.
[[nodiscard]] std::optional<TimerRequest> parse_timer_request(std::string_view line);

/// Running timers by process and scope, without a clock.
class TimerTable {
 public:
  static constexpr std::size_t max_timers = 4096;

  /// Sets, renews or releases a timer. False if the table is full.
  bool set(TimerRequest request);

  /// The earliest expiry in seconds since the epoch; nothing if no timer runs.
  [[nodiscard]] std::optional<double> next() const;

  /// Removes all timers of processes with an expired one, and returns one for each: the earliest with a signal, else
  /// the earliest.
  [[nodiscard]] std::vector<TimerRequest> take_expired(double now);

  /// Drops timers for which `gone` returns true.
  template <class Gone>
  void drop(Gone gone) {
    std::erase_if(timers_, [&](const auto& entry) { return gone(entry.second); });
  }
  /// Delays all timers.
  void postpone(double seconds) {
    for (auto& entry : timers_) entry.second.expires += seconds;
  }
  void clear() { timers_.clear(); }
  [[nodiscard]] std::size_t size() const { return timers_.size(); }

 private:
  std::map<std::pair<pid_t, std::string>, TimerRequest> timers_;
};

/// Path of the watchdog's FIFO: $TORCHELASTIC_TIMER_FILE, else a new name in $TMPDIR or /tmp. Nothing unless
/// TORCHELASTIC_ENABLE_FILE_TIMER=1.
[[nodiscard]] std::optional<std::string> timer_file_path(const LaunchSpec& spec, const Environment& parent);

/// Server of PyTorch's file timers: workers write deadlines into a FIFO, and expired ones are reported. Input is
/// untrusted: invalid lines are skipped and memory is bounded. Does not block.
class FileTimer {
 public:
  /// `on_expiry` gets one timer for each live process whose timer has expired.
  FileTimer(boost::asio::any_io_executor executor, std::function<void(const std::vector<TimerRequest>&)> on_expiry);

  /// Makes the FIFO, replacing an older one. Fails with `unavailable`, also if the path is no FIFO.
  Result<void> open(std::string path);
  [[nodiscard]] const std::string& path() const { return path_; }

  /// Clears all timers at the start of an attempt, and makes the FIFO again if it was removed; fails as open() does.
  Result<void> renew();
  /// Pauses or continues all timers.
  void set_paused(bool still);
  /// Removes the FIFO, unless it was replaced.
  void close();

 private:
  void wait_for_requests();
  void read_requests();
  void read_line(std::string_view line);
  void warn_once(const char* what);
  void wait_for_expiry();
  void expire();

  boost::asio::posix::stream_descriptor fifo_;
  boost::asio::system_timer timer_;
  std::function<void(const std::vector<TimerRequest>&)> on_expiry_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::string unfinished_;              ///< an incomplete line
  bool skipping_ = false;               ///< the rest of a line that is too long
  std::optional<double> paused_since_;  ///< in seconds since the epoch
  bool warned_ = false;
  TimerTable table_;
};

/// Sends processes of the job whose timer has expired the signal that they requested (FileTimer), and records it as the
/// reason of their end.
class Watchdog : public Participant {
 public:
  /// `group` and `record` are borrowed.
  Watchdog(boost::asio::any_io_executor executor, WorkerGroup& group, JobRecord& record);

  /// As FileTimer::open.
  Result<void> open(std::string path) { return timer_.open(std::move(path)); }
  [[nodiscard]] const std::string& path() const { return timer_.path(); }
  /// As FileTimer::renew, at the start of an attempt.
  Result<void> renew() { return timer_.renew(); }
  void close() override { timer_.close(); }
  /// While the workers are stopped.
  void set_paused(bool still) override { timer_.set_paused(still); }

 private:
  void expired(const std::vector<TimerRequest>& timers);
  void signal_late_process(const TimerRequest& timer, const process::ProcessInfo& process);

  WorkerGroup& group_;
  JobRecord& record_;
  FileTimer timer_;
  bool foreign_timer_reported_ = false;  ///< a timer of a process outside the job, once
};

}  // namespace ddrun::agent
