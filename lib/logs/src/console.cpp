#include "ddrun/logs/console.hpp"

#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ddrun/base/io_context.hpp"
#include "ddrun/base/text.hpp"
#include "shared_screen.hpp"

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

/// With this many queued bytes schedule_flush() writes at once.
constexpr std::size_t flush_size = std::size_t{64} << 10U;
/// Of a pipe that was full once: more would need a privilege. The reader is woken less often.
constexpr std::size_t pipe_size = std::size_t{1} << 20U;

constexpr std::string_view erase_to_end_of_line = "\033[K";
constexpr std::string_view show_cursor = "\033[?25h";

bool is_pty_master(const struct stat& info) { return S_ISCHR(info.st_mode) && info.st_rdev == makedev(5, 2); }

}  // namespace

Console::Console(boost::asio::any_io_executor executor, int fd, std::size_t high)
    : executor_(std::move(executor)), fd_(fd), output_(fd), high_(high), watch_(executor_) {
  terminal_ = ::isatty(fd) == 1;
  const char* term = std::getenv("TERM");
  can_erase_ = terminal_ && term != nullptr && std::strcmp(term, "dumb") != 0;
  if (terminal_) screen_ = std::make_unique<ScreenState>();
  if (output_.error() != 0) write_failed(output_.error());
}

Console::~Console() = default;

bool Console::same_file(int fd, int other) {
  struct stat a {};
  struct stat b {};
  if (fd == other) return true;
  if (::fstat(fd, &a) != 0 || ::fstat(other, &b) != 0) return false;
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_rdev == b.st_rdev && !is_pty_master(a);
}

void Console::add_text(std::string_view text) {
  if (gone_) return count_lost(text.size());
  end_line_of_other_writer(nullptr);
  queue_.append(text);
}

void Console::add_drawing(std::string_view bytes, bool ends_at_line_start) {
  if (gone_) return;
  end_line_of_other_writer(screen_.get());
  queue_.append(bytes);
  line_owner_ = screen_.get();
  cursor_ = ends_at_line_start ? Cursor::line_start : Cursor::in_line;
}

void Console::reset_screen_of_other_writer(const void* writer) {
  if (line_owner_ == writer) return;
  if (screen_->styled) queue_.append("\033[m");
  if (screen_->below > 0) {
    queue_.append(concat("\033[", screen_->below, "B\r\n"));
    cursor_ = Cursor::line_start;
  }
  *screen_ = {.hidden = screen_->hidden};
}

void Console::end_line_of_other_writer(const void* writer) {
  if (terminal_) reset_screen_of_other_writer(writer);
  if (cursor_ == Cursor::line_start || line_owner_ == writer) return;
  if (cursor_ == Cursor::in_line) queue_.append("\n");
  else if (can_erase_) queue_.append(erase_to_end_of_line);  // of a progress bar
  cursor_ = Cursor::line_start;
}

void Console::add_to_terminal(const void* writer, std::string_view prefix, const Piece& piece) {
  if (piece.end == PieceEnd::cut && !piece.continues && piece.text == show_cursor) {
    // A progress bar writes this last, behind its last line, so no newline follows.
    screen_->hidden = false;
    return queue_.append(show_cursor);
  }
  end_line_of_other_writer(writer);
  const bool continues_here = piece.continues && cursor_ != Cursor::line_start;
  // The line was already ended for another writer, and no more of it has come.
  if (piece.continues && !continues_here && piece.text.empty()) return;
  if (!continues_here) queue_.append(prefix);
  filtered_.clear();
  append_filtered(filtered_, piece.text, prefix, *screen_);
  queue_.append(filtered_);
  line_owner_ = writer;
  if (piece.end == PieceEnd::cut) {
    queue_.append("\n");
    ++screen_->above;
    cursor_ = Cursor::line_start;
    return;
  }
  const char last = piece.text.empty() ? '\n' : piece.text.back();
  if (last == '\r') cursor_ = Cursor::after_return;
  else cursor_ = piece.end == PieceEnd::open ? Cursor::in_line : Cursor::line_start;
}

void Console::schedule_flush() {
  if (queue_.empty()) return;
  had_back_pressure_ = had_back_pressure_ || has_back_pressure();
  if (waiting_) return;
  if (queue_.size() >= flush_size) return flush();
  if (flush_posted_) return;
  flush_posted_ = true;
  boost::asio::post(executor_, [self = shared_from_this()] {
    self->flush_posted_ = false;
    self->flush();
  });
}

void Console::flush() {
  if (waiting_ || closed_) return;
  if (on_flush_) on_flush_();
  if (!write_queued()) wait_until_writable();
  notify_drained();
}

bool Console::write_queued() {
  while (!queue_.empty() && !gone_) {
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
  gone_ = err != ENOSPC && err != EDQUOT && err != EFBIG;
  reader_closed_ = err == EPIPE || err == ECONNRESET || (err == EIO && terminal_);
}

void Console::notify_drained() {
  const bool room = queue_.size() <= high_ / 4;
  if (!on_drained_ || !(queue_.empty() || (had_back_pressure_ && room))) return;
  if (room) had_back_pressure_ = false;
  on_drained_();
}

void Console::close() {
  if (std::exchange(closed_, true)) return;
  on_drained_ = on_flush_ = nullptr;
  boost::system::error_code ignored;
  watch_.close(ignored);
  waiting_ = false;
  if (screen_ && screen_->hidden && !gone_) queue_.append(show_cursor);  // a worker was killed during a progress bar
  if (!write_queued()) drop_queue();
}

void Console::drop_queue() {
  if (queue_.empty()) return;
  if (first_error_.empty()) first_error_ = "not read in time";
  count_lost(queue_.size());
  queue_.consume(queue_.size());
}

}  // namespace ddrun::logs
