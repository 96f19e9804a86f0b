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
  /// Gives the descriptor away; the caller closes it.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

/// A pipe whose ends are both close-on-exec. `flags` is added, for example O_NONBLOCK (both ends).
/// Fails with `unavailable` when descriptors run out.
[[nodiscard]] Result<Pipe> make_pipe(int flags = 0);

/// A close-on-exec copy of `fd`, numbered `lowest` or above.
[[nodiscard]] Result<UniqueFd> duplicate(int fd, int lowest = 3);

/// Writes all of it, waiting as long as the descriptor makes it wait; false on an error (errno is set). A descriptor
/// that does not block, such as a stderr that another program shares and has set so, is waited for too, but not when
/// it takes nothing for ten seconds: then errno is EAGAIN.
bool write_all(int fd, const void* data, std::size_t size) noexcept;

/// Puts /dev/null where a standard stream was closed by the caller: what is opened later must not become one, or our
/// words would go there.
void fill_closed_standard_streams() noexcept;

}  // namespace ddrun
