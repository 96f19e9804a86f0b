#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/system_timer.hpp>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "timer_table.hpp"

namespace ddrun::agent {

/// Where the watchdog's FIFO is to be: $TORCHELASTIC_TIMER_FILE, else a new name in $TMPDIR or /tmp. Nothing unless
/// TORCHELASTIC_ENABLE_FILE_TIMER=1 asks for it.
[[nodiscard]] std::optional<std::string> wanted_timer_file(const LaunchSpec& spec, const Environment& parent);

/// The server of PyTorch's file timers: workers write into a FIFO by when they will be through with something, and
/// whoever is not through by then is reported. Harmed by nothing that is written there; what it keeps is bounded.
class FileTimer {
 public:
  /// `on_expiry` gets one timer for each process that is late and still there; all that are late at the same time.
  FileTimer(boost::asio::any_io_executor executor, std::function<void(const std::vector<TimerRequest>&)> on_expiry);

  /// Makes the FIFO. An older one of that name is replaced; anything else of that name is an error.
  Result<void> open(std::string path);
  [[nodiscard]] const std::string& path() const { return path_; }

  /// A new attempt begins: timers of the one before mean nothing any more.
  void forget() { table_.clear(); }
  /// While it stands still no timer expires; afterwards each has as much time left as before.
  void stand_still(bool still);
  /// Removes the FIFO, unless somebody has put another one there.
  void close();

 private:
  void wait_for_requests();
  /// What is in the FIFO now; false if that is nothing.
  bool read_requests();
  void take_line(std::string_view line);
  void complain(const char* what);
  void wait_for_expiry();
  void expire();

  boost::asio::posix::stream_descriptor fifo_;
  boost::asio::system_timer timer_;
  std::function<void(const std::vector<TimerRequest>&)> on_expiry_;
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::string unfinished_;             ///< a line whose end has not come yet
  bool skipping_ = false;              ///< to the end of a line that is too long
  std::optional<double> still_since_;  ///< in seconds since the epoch
  bool complained_ = false;            ///< once is enough
  TimerTable table_;
};

}  // namespace ddrun::agent
