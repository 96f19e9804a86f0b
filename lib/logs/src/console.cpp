#include "ddrun/logs/console.hpp"

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ddrun/base/io_context.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::logs {

void ByteQueue::grow(std::size_t count) {
  const std::size_t used = size();
  if (used + count <= capacity_ && begin_ >= capacity_ / 2) {
    std::memmove(bytes_.get(), bytes_.get() + begin_, used);
  } else {
    const std::size_t wanted = std::max({used + count, capacity_ * 2, std::size_t{16} << 10U});
    std::unique_ptr<char[]> bigger(new char[wanted]);
    if (used > 0) std::memcpy(bigger.get(), data(), used);
    bytes_ = std::move(bigger);
    capacity_ = wanted;
  }
  begin_ = 0;
  end_ = used;
}

namespace {

/// Of a pipe that was full once: more would need a privilege. The reader is woken less often.
constexpr std::size_t pipe_size = std::size_t{1} << 20U;

bool is_pty_master(const struct stat& info) { return S_ISCHR(info.st_mode) && info.st_rdev == makedev(5, 2); }

}  // namespace

Console::Console(const boost::asio::any_io_executor& executor, int fd, std::size_t high)
    : fd_(fd), output_(fd), kind_(kind_of(fd)), high_(high), watch_(executor) {
  if (output_.error() != 0) write_failed(output_.error());
}

Console::Kind Console::kind_of(int fd) {
  if (::isatty(fd) != 1) return Kind::other;
  const char* term = std::getenv("TERM");
  return term == nullptr || std::strcmp(term, "dumb") == 0 ? Kind::dumb_terminal : Kind::terminal;
}

bool Console::same_file(int fd, int other) {
  struct stat a {};
  struct stat b {};
  if (fd == other) return true;
  if (::fstat(fd, &a) != 0 || ::fstat(other, &b) != 0) return false;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_rdev == b.st_rdev && !is_pty_master(a);
}

void Console::flush() {
  had_back_pressure_ = had_back_pressure_ || has_back_pressure();
  if (waiting_ || state_ == State::closed) return;
  if (!write_queued()) wait_until_writable();
  notify_drained();
}

bool Console::write_queued() {
  while (!queue_.empty() && !gone()) {
    const long written = output_.write_some(queue_.data(), queue_.size());
    if (written > 0) {
      mid_line_ = queue_.data()[written - 1] != '\n';
      written_ += static_cast<std::uint64_t>(written);
      queue_.consume(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      if (std::exchange(was_full_, true) || !enlarge_pipe(fd_, pipe_size)) return false;
    } else if (written < 0 && errno != EINTR) {
      write_failed(errno);
    }
  }
  return true;
}

void Console::wait_until_writable() {
  struct epoll_event event {};
  event.events = EPOLLOUT | EPOLLONESHOT;
  const int target = output_.descriptor();
  // Asio would set O_NONBLOCK on the console's descriptor, so it watches an epoll set instead.
  if (!watch_.is_open()) {
    UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, target, &event) != 0) return write_failed(errno);
    if (const int err = assign_descriptor(watch_, std::move(epoll)); err != 0) return write_failed(err);
  } else if (::epoll_ctl(watch_.native_handle(), EPOLL_CTL_MOD, target, &event) != 0) {
    return write_failed(errno);
  }
  waiting_ = true;
  watch_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& failed) {
                      self->waiting_ = false;
                      if (!failed) self->flush();
                    });
}

void Console::write_failed(int err) {
  if (first_error_.empty()) first_error_ = concat("cannot write to the console: ", std::strerror(err));
  count_lost(queue_.size());
  queue_.consume(queue_.size());
  // A full disk may have room again later; all other errors are final.
  if (err == ENOSPC || err == EDQUOT || err == EFBIG) return;
  state_ = err == EPIPE || err == ECONNRESET || (err == EIO && is_terminal()) ? State::reader_closed : State::gone;
}

void Console::notify_drained() {
  const bool room = queue_.size() <= high_ / 4;
  if (!on_drained_ || !(queue_.empty() || (had_back_pressure_ && room))) return;
  if (room) had_back_pressure_ = false;
  on_drained_();
}

void Console::close() {
  if (state_ == State::closed) return;
  on_drained_ = nullptr;
  boost::system::error_code ignored;
  watch_.close(ignored);
  waiting_ = false;
  if (!write_queued()) drop_queue();
  if (!gone()) state_ = State::closed;
}

void Console::drop_queue() {
  if (queue_.empty()) return;
  if (first_error_.empty()) first_error_ = "not read in time";
  count_lost(queue_.size());
  queue_.consume(queue_.size());
}

}  // namespace ddrun::logs
