#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "ddrun/base/unique_fd.hpp"

// Output to descriptors that came from outside, such as stdout and stderr: other programs have them open, too, and a
// reader may never read.

namespace ddrun {

/// A terminal, pipe, socket or file that is written without blocking and without O_NONBLOCK, a flag that every program
/// with the same open file would see. The descriptor is borrowed. The process must ignore SIGPIPE, or end by it.
class SharedOutput {
 public:
  /// error() is not 0 if it is not open.
  explicit SharedOutput(int fd);

  /// As write(2), with EAGAIN instead of blocking. (A file may wait for its disk.)
  [[nodiscard]] ssize_t write_some(const char* data, std::size_t size) const;
  /// Ready for POLLOUT when something can be written.
  [[nodiscard]] int descriptor() const { return own_fd_ ? own_fd_.get() : fd_; }
  [[nodiscard]] int error() const { return error_; }

 private:
  enum class Access {
    own,     ///< the pipe or terminal opened again, non-blocking
    socket,  ///< MSG_DONTWAIT for each call
    direct,  ///< a file: writing does not wait for a reader
    polled,  ///< may block: poll() before each small write
  };

  int fd_;
  UniqueFd own_fd_;
  Access access_ = Access::direct;
  std::size_t max_polled_write_ = 1;
  int error_ = 0;
};

/// Writes all of `text` to a descriptor from outside. Waits for its reader; once this process has to end, only as long
/// as it takes something each second (shutdown::console_stall_limit). False with errno; EAGAIN: not read in time, the
/// rest is dropped.
bool write_shared(int fd, std::string_view text) noexcept;

/// Bytes that write_shared() has dropped in this process.
[[nodiscard]] std::uint64_t dropped_output() noexcept;

/// This process has to end: set_ending() was called, SIGHUP, SIGINT, SIGQUIT or SIGTERM is pending, or the condition is
/// true. write_shared() asks while it waits.
[[nodiscard]] bool is_ending();
void set_ending() noexcept;
/// To be called before threads are started.
void set_ending_condition(std::function<bool()> condition);

}  // namespace ddrun
