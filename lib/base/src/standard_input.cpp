#include "ddrun/base/standard_input.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <boost/asio/post.hpp>
#include <memory>
#include <utility>

#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/io_context.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun {

namespace {

/// Does not block: AT_STATX_DONT_SYNC does not contact a file server.
bool is_file(int fd) {
  struct statx info {};
  return ::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &info) == 0 && S_ISREG(info.stx_mode);
}

void read_into(int pipe, int file) {
  std::array<char, 32 << 10> chunk;  // NOLINT: written by read
  for (;;) {
    const ssize_t n = ::read(file, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || !write_all(pipe, chunk.data(), static_cast<std::size_t>(n))) return;
  }
}

/// Reads `file` from its position on a detached thread, so that a hanging disk blocks only that thread. Returns the
/// non-blocking read end of a pipe; end-of-file also on a read error. The thread ends when the returned end is closed,
/// or stays in a hanging read. `file` is borrowed and not closed, since close() may hang, too.
Result<UniqueFd> read_on_thread(int file) {
  auto pipe = TRY(make_pipe());
  // Only this end: the thread blocks on a full pipe.
  if (::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK) != 0) {
    return fail_errno(Errc::unavailable, "cannot change a pipe", errno);
  }
  auto end = std::make_shared<UniqueFd>(std::move(pipe.write));
  TRY(start_thread_signals_blocked("ddrun-input", [end, file] {
    read_into(end->get(), file);
    end->reset();
  })).detach();
  return std::move(pipe.read);
}

}  // namespace

StandardInput::StandardInput(boost::asio::any_io_executor executor, Events events)
    : executor_(std::move(executor)), events_(std::move(events)), readable_(executor_), background_timer_(executor_) {}

void StandardInput::open() {
  state_ = State::open;
  // Not reopened if it is a file: the position is shared with the shell, and some file systems contact their server in
  // epoll_ctl().
  if (!is_file(STDIN_FILENO)) {
    // A reopened descriptor may be non-blocking. Sockets and a terminal of another user cannot be reopened.
    input_ = UniqueFd(::open("/proc/self/fd/0", O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!input_) {
      if (auto copy = duplicate(STDIN_FILENO)) input_ = std::move(*copy);
    }
    is_terminal_ = ::isatty(input_.get()) != 0;
    if (watch() != EPERM) return;
  }
  if (auto pipe = read_on_thread(STDIN_FILENO)) {
    input_ = std::move(*pipe);
    (void)watch();
  } else if (auto copy = duplicate(STDIN_FILENO)) {
    input_ = std::move(*copy);
  }
}

int StandardInput::watch() {
  // Asio sets O_NONBLOCK on what it waits for, so it gets an epoll set. epoll refuses what is always ready.
  UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  if (!set || ::epoll_ctl(set.get(), EPOLL_CTL_ADD, input_.get(), &event) != 0) return errno;
  return assign_descriptor(readable_, std::move(set));
}

void StandardInput::request() {
  wanted_ = state_ != State::ended;
  if (!wanted_) return;
  if (state_ == State::unopened) open();
  if (!input_) return end();
  if ((events_.on_terminal && waits_in_background()) || std::exchange(waiting_, true)) return;
  if (!readable_.is_open()) {
    boost::asio::post(executor_, [this] {
      waiting_ = false;
      read();
    });
    return;
  }
  readable_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    waiting_ = false;
    if (!ec) read();
  });
}

/// If so, the request goes on later.
bool StandardInput::waits_in_background() {
  const bool in_background = is_terminal_ && events_.is_in_background();
  if (events_.on_terminal) events_.on_terminal(in_background);
  if (!in_background) return false;
  background_timer_.expires_after(background_interval);
  background_timer_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec && wanted_) request();
  });
  return true;
}

void StandardInput::read() {
  if (!wanted_ || state_ == State::ended || waits_in_background()) return;
  std::array<char, 64 << 10> chunk;  // NOLINT: written by read
  ssize_t n;
  do {
    n = ::recv(input_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n < 0 && errno == ENOTSOCK) n = ::read(input_.get(), chunk.data(), chunk.size());
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return request();
  if (n <= 0) return end();
  wanted_ = false;
  events_.on_bytes({chunk.data(), static_cast<std::size_t>(n)});
}

void StandardInput::end() {
  close();
  events_.on_end();
}

void StandardInput::close() {
  state_ = State::ended;
  wanted_ = false;
  background_timer_.cancel();
  boost::system::error_code ignored;
  readable_.close(ignored);
  input_.reset();  // ends the reading thread
}

}  // namespace ddrun
