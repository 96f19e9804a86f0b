#include "ddrun/base/unique_fd.hpp"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace ddrun {

void UniqueFd::reset(int fd) noexcept {
  // Linux closes the descriptor even when close() is interrupted: never retry.
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

Result<Pipe> make_pipe(int flags) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | flags) != 0) return fail_errno(Errc::unavailable, "cannot make a pipe", errno);
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool enlarge_pipe(int fd, std::size_t bytes) noexcept {
  const auto wanted = static_cast<long>(bytes);
  const long usual = 16 * ::sysconf(_SC_PAGESIZE);
  return wanted > usual && ::fcntl(fd, F_GETPIPE_SZ) == usual && ::fcntl(fd, F_SETPIPE_SZ, wanted) > 0;
}

Result<UniqueFd> duplicate(int fd, int lowest) {
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, lowest);
  if (copy < 0) return fail_errno(Errc::unavailable, "cannot duplicate a file descriptor", errno);
  return UniqueFd(copy);
}

namespace {

/// Limit without progress, for a descriptor that another program has made non-blocking.
constexpr int write_stall_ms = 10'000;

/// Waits until `fd` is writable; false with errno on timeout or error.
bool wait_writable(int fd) noexcept {
  struct pollfd room {
    fd, POLLOUT, 0
  };
  int ready = 0;
  do ready = ::poll(&room, 1, write_stall_ms);
  while (ready < 0 && errno == EINTR);
  if (ready == 0) errno = EAGAIN;
  return ready > 0;
}

}  // namespace

bool write_all(int fd, const void* data, std::size_t size) noexcept {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::write(fd, at, size);
    if (n < 0) {
      if (errno == EINTR || (errno == EAGAIN && wait_writable(fd))) continue;
      return false;
    }
    at += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

void fill_closed_standard_streams() noexcept {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0) [[maybe_unused]]
      const int opened = ::open("/dev/null", O_RDONLY);
  }
}

}  // namespace ddrun
