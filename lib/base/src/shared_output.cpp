#include "ddrun/base/shared_output.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun {

namespace {

/// After poll() a write of this size does not block.
constexpr std::size_t terminal_write_size = 128;
constexpr std::size_t pipe_write_size = 4096;
/// Between two questions whether this process has to end.
constexpr int ending_poll_ms = 200;

std::atomic<bool> ending{false};
std::function<bool()> ending_condition;
std::atomic<std::uint64_t> dropped{0};
/// By descriptor: its reader was given up, and has read nothing since. The last one: all others.
std::array<std::atomic<bool>, 4> given_up{};

bool is_pty_master(const struct stat& info) { return S_ISCHR(info.st_mode) && info.st_rdev == makedev(5, 2); }

}  // namespace

SharedOutput::SharedOutput(int fd) : fd_(fd) {
  struct stat info {};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fstat(fd, &info) != 0) {
    error_ = errno;
    return;
  }
  // A file of this process may have got the number of a closed stream, and opening it again would not ask for this.
  if ((flags & O_ACCMODE) == O_RDONLY) {
    error_ = EBADF;
    return;
  }
  if (S_ISSOCK(info.st_mode)) access_ = Access::socket;
  if (!S_ISFIFO(info.st_mode) && !S_ISCHR(info.st_mode)) return;
  // Opening the same pipe or terminal again gives another open file. (For a pty's master it would make a new terminal.)
  if (!is_pty_master(info)) {
    const std::string path = concat("/proc/self/fd/", fd);
    own_fd_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
  access_ = own_fd_ ? Access::own : Access::polled;
  max_polled_write_ = S_ISFIFO(info.st_mode) ? pipe_write_size : terminal_write_size;
}

ssize_t SharedOutput::write_some(const char* data, std::size_t size) const {
  switch (access_) {
    case Access::own: return ::write(own_fd_.get(), data, size);
    case Access::direct: return ::write(fd_, data, size);
    case Access::socket: return ::send(fd_, data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    case Access::polled: break;
  }
  pollfd ready{fd_, POLLOUT, 0};
  if (::poll(&ready, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  return ::write(fd_, data, std::min(size, max_polled_write_));
}

bool write_shared(int fd, std::string_view text) noexcept {
  const SharedOutput output(fd);
  if (errno = output.error(); errno != 0) return false;
  auto& is_given_up = given_up[std::min<std::size_t>(static_cast<std::size_t>(fd), given_up.size() - 1)];
  Clock::time_point waits_from = Clock::now();  // the last progress, or since this process has to end
  bool bounded = false;
  while (!text.empty()) {
    const ssize_t written = output.write_some(text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
      waits_from = Clock::now();
      is_given_up = false;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    if (!std::exchange(bounded, bounded || is_ending()) && bounded) waits_from = Clock::now();
    if (bounded && (is_given_up || Clock::now() - waits_from >= shutdown::console_stall_limit)) {
      is_given_up = true;
      dropped += text.size();
      errno = EAGAIN;
      return false;
    }
    pollfd ready{output.descriptor(), POLLOUT, 0};
    ::poll(&ready, 1, ending_poll_ms);
  }
  return true;
}

std::uint64_t dropped_output() noexcept { return dropped; }

bool is_ending() {
  if (ending) return true;
  sigset_t pending;
  ::sigemptyset(&pending);
  ::sigpending(&pending);
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) {
    if (::sigismember(&pending, signal) == 1) return true;
  }
  return ending_condition && ending_condition();
}

void set_ending() noexcept { ending = true; }

void set_ending_condition(std::function<bool()> condition) { ending_condition = std::move(condition); }

}  // namespace ddrun
