#pragma once

#include <utility>

#include "ddrun/base/result.hpp"

namespace ddrun {

/// Owns one file descriptor and closes it. Move only; -1 means none.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Releases ownership; the caller closes the descriptor.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

/// A pipe, both ends close-on-exec. `flags` applies to both ends, for example O_NONBLOCK. Fails with `unavailable`
/// without descriptors.
[[nodiscard]] Result<Pipe> make_pipe(int flags = 0);

/// Lets a pipe of the usual size hold this many bytes. False if that is denied, if `fd` is no pipe, or if it
/// has another size, which a user may have set.
bool enlarge_pipe(int fd, std::size_t bytes) noexcept;

/// A close-on-exec duplicate of `fd`, numbered `lowest` or above.
[[nodiscard]] Result<UniqueFd> duplicate(int fd, int lowest = 3);

/// Writes all bytes; blocks as write(2) does. False with errno on error. A non-blocking descriptor, which another
/// program may share, is polled; EAGAIN after ten seconds without progress.
bool write_all(int fd, const void* data, std::size_t size) noexcept;

/// Opens /dev/null for each closed standard stream: a file opened later must not get its number and receive ddrun's
/// messages.
void fill_closed_standard_streams() noexcept;

}  // namespace ddrun
