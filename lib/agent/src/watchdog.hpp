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
#include "worker_group.hpp"

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
  static constexpr std::size_t max_timers = 4096;

  /// Sets a timer, sets it anew or releases it. False: there are too many, and it was not taken.
  bool set(TimerRequest request);

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
  void postpone(double seconds) {
    for (auto& entry : timers_) entry.second.expires += seconds;
  }
  void clear() { timers_.clear(); }
  [[nodiscard]] std::size_t size() const { return timers_.size(); }

 private:
  std::map<std::pair<pid_t, std::string>, TimerRequest> timers_;
};

/// Where the watchdog's FIFO is to be: $TORCHELASTIC_TIMER_FILE, else a new name in $TMPDIR or /tmp. Nothing unless
/// TORCHELASTIC_ENABLE_FILE_TIMER=1 asks for it.
[[nodiscard]] std::optional<std::string> timer_file_path(const LaunchSpec& spec, const Environment& parent);

/// The server of PyTorch's file timers: workers write into a FIFO by when they will be through with something, and
/// a worker that is not through by then is reported. Harmed by nothing that is written there; what it keeps is bounded.
class FileTimer {
 public:
  /// `on_expiry` gets one timer for each process that is late and still there; all that are late at the same time.
  FileTimer(boost::asio::any_io_executor executor, std::function<void(const std::vector<TimerRequest>&)> on_expiry);

  /// Makes the FIFO. An older one of that name is replaced; anything else of that name is an error.
  Result<void> open(std::string path);
  [[nodiscard]] const std::string& path() const { return path_; }

  /// A new attempt begins: timers of the one before mean nothing any more. A FIFO that is gone is made again; fails as
  /// `open` does.
  Result<void> renew();
  /// While it stands still no timer expires; afterwards each has as much time left as before.
  void set_paused(bool still);
  /// Removes the FIFO, unless another one was put there.
  void close();

 private:
  void wait_for_requests();
  /// What is in the FIFO now; false if that is nothing.
  bool read_requests();
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
  std::string unfinished_;              ///< a line whose end has not come yet
  bool skipping_ = false;               ///< to the end of a line that is too long
  std::optional<double> paused_since_;  ///< in seconds since the epoch
  bool warned_ = false;                 ///< once is enough
  TimerTable table_;
};

/// Sends processes of the job that are not through in time the signal that they had asked for in that case
/// (FileTimer), and sees to it that the record says why they ended.
class Watchdog {
 public:
  /// `group` and `record` are borrowed.
  Watchdog(boost::asio::any_io_executor executor, WorkerGroup& group, JobRecord& record);

  /// As FileTimer::open.
  Result<void> open(std::string path) { return timer_.open(std::move(path)); }
  [[nodiscard]] const std::string& path() const { return timer_.path(); }
  /// A new attempt begins.
  Result<void> renew() { return timer_.renew(); }
  void close() { timer_.close(); }
  /// While the workers are stopped none is late.
  void set_paused(bool still) { timer_.set_paused(still); }

 private:
  void expired(const std::vector<TimerRequest>& timers);
  void signal_late_process(const TimerRequest& timer, const process::ProcessInfo& process);

  WorkerGroup& group_;
  JobRecord& record_;
  FileTimer timer_;
  bool foreign_timer_reported_ = false;  ///< a timer of a process that is none of ours: once is enough
};

}  // namespace ddrun::agent
