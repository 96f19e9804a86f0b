#include "stdin_feed.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/process/guard.hpp"

namespace ddrun::agent {

namespace {

/// How far the fastest worker may be ahead of the slowest.
constexpr std::size_t max_backlog_bytes = std::size_t{16} << 20U;
/// Slow ranks are named once the others have waited this long.
constexpr std::chrono::seconds slow_reader_delay{5};

/// These settings of a terminal, without line editing and echo. Keys for signals and flow control keep their effect.
termios passing_keys(termios settings) {
  settings.c_iflag &= ~static_cast<tcflag_t>(ICRNL | INLCR | IGNCR);
  settings.c_lflag &= ~static_cast<tcflag_t>(ICANON | IEXTEN | ECHO | ECHOE | ECHOK | ECHONL);
  settings.c_cc[VMIN] = 1;
  settings.c_cc[VTIME] = 0;
  return settings;
}

}  // namespace

StdinFeed::StdinFeed(boost::asio::any_io_executor executor)
    : executor_(std::move(executor)),
      input_(executor_, {.on_bytes =
                             [this](std::string_view bytes) {
                               backlog_ += bytes;
                               push_all();
                             },
                         .on_end = [this] { on_input_end(); },
                         .is_in_background = process::job_is_in_background,
                         .on_terminal = [this](bool in_background) { set_terminal(!in_background); }}),
      slowest_timer_(executor_) {
  struct stat info {};
  seekable_ = ::fstat(STDIN_FILENO, &info) == 0 && S_ISREG(info.st_mode);
}

Result<UniqueFd> StdinFeed::open(const RankName& rank) {
  if (seekable_) {
    const off_t offset = ::lseek(STDIN_FILENO, 0, SEEK_CUR);
    UniqueFd own(::open("/proc/self/fd/0", O_RDONLY | O_CLOEXEC));
    if (own) {
      ::lseek(own.get(), offset, SEEK_SET);
      return own;
    }
    seekable_ = false;
  }
  auto pipe = TRY(make_pipe());
  // Only ddrun's end: the worker expects to block.
  ::fcntl(pipe.write.get(), F_SETFL, O_NONBLOCK);
  TRY(add(rank, std::move(pipe.write)));
  return std::move(pipe.read);
}

Result<void> StdinFeed::add(const RankName& rank, UniqueFd fd) {
  feeds_terminal_ = ::isatty(fd.get()) != 0;
  if (const int err = assign_descriptor(readers_.emplace_back(executor_, rank).pipe, std::move(fd)); err != 0)
    return fail_errno(Errc::unavailable, "cannot watch a worker's standard input", err);
  return {};
}

void StdinFeed::start() {
  if (readers_.empty()) return;
  if (at_end_) stop();
  else wait_for_input();
}

void StdinFeed::set_paused(bool still) {
  set_terminal(false);
  paused_ = still;
  if (still) input_.cancel();
  else if (input_.is_open()) read_more();
}

/// The agent's session has no terminal: tcsetattr() sends no SIGTTOU.
void StdinFeed::set_terminal(bool passes_keys) {
  termios now{};
  if (!feeds_terminal_ || std::exchange(passes_keys_, passes_keys) == passes_keys) return;
  if (::tcgetattr(STDIN_FILENO, &now) != 0) return;
  if (passes_keys) terminal_before_ = now;
  const termios set = passing_keys(terminal_before_);
  if (passes_keys) ::tcsetattr(STDIN_FILENO, TCSANOW, &set);
  else if (now.c_iflag == set.c_iflag && now.c_lflag == set.c_lflag) {
    ::tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before_);
  }
}

void StdinFeed::stop() {
  set_terminal(false);
  input_.cancel();
  ++generation_;
  readers_.clear();
  backlog_.clear();
  begin_ = 0;
  slowest_timer_.cancel();
  slowest_watched_ = false;
}

void StdinFeed::wait_for_input() {
  if (!paused_ && !readers_.empty()) input_.request();
}

/// Closes readers that have all input; the others get the rest first.
void StdinFeed::on_input_end() {
  at_end_ = true;
  std::erase_if(readers_, [this](const Reader& reader) { return reader.at == end(); });
}

void StdinFeed::push_all() {
  for (auto reader = readers_.begin(); reader != readers_.end();) push(reader++);
  read_more();
}

void StdinFeed::push(std::list<Reader>::iterator reader) {
  while (!reader->waiting && reader->at < end()) {
    const auto offset = static_cast<std::size_t>(reader->at - begin_);
    const ssize_t n = ::write(reader->pipe.native_handle(), backlog_.data() + offset, backlog_.size() - offset);
    if (n >= 0) {
      reader->at += static_cast<std::uint64_t>(n);
    } else if (errno == EAGAIN) {
      reader->waiting = true;
      reader->pipe.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                              [this, reader, generation = generation_](const boost::system::error_code& ec) {
                                if (ec || generation != generation_) return;
                                reader->waiting = false;
                                push(reader);
                                read_more();
                              });
    } else if (errno != EINTR) {
      readers_.erase(reader);  // it reads no more
      return;
    }
  }
  if (at_end_ && reader->at == end()) readers_.erase(reader);
}

std::uint64_t StdinFeed::slowest() const {
  std::uint64_t least = end();
  for (const Reader& reader : readers_) least = std::min(least, reader.at);
  return least;
}

void StdinFeed::read_more() {
  const auto got_by_all = static_cast<std::size_t>(slowest() - begin_);
  // Erase only large parts, to move bytes seldom.
  if (got_by_all == backlog_.size() || got_by_all >= backlog_.size() / 2) {
    backlog_.erase(0, got_by_all);
    begin_ += got_by_all;
  }
  if (at_end_ || readers_.empty()) return set_terminal(false);
  const bool wanted =
      std::any_of(readers_.begin(), readers_.end(), [this](const Reader& reader) { return reader.at == end(); });
  if (!wanted) return;
  if (end() - slowest() < max_backlog_bytes) wait_for_input();
  else watch_slowest();
}

void StdinFeed::watch_slowest() {
  if (slow_readers_reported_ || std::exchange(slowest_watched_, true)) return;
  slowest_timer_.expires_after(slow_reader_delay);
  slowest_timer_.async_wait([this, before = slowest(), generation = generation_](const boost::system::error_code& ec) {
    if (ec || generation != generation_) return;
    slowest_watched_ = false;
    if (slowest() != before || readers_.empty()) return read_more();
    std::vector<RankName> ranks;
    for (const Reader& reader : readers_) {
      if (reader.at == before) ranks.push_back(reader.rank);
    }
    slow_readers_reported_ = true;
    say(Level::warning, concat(name_workers(ranks), ranks.size() == 1 ? " does" : " do",
                               " not read standard input, and the others get no more of it until then (--stdin=all)"));
  });
}

}  // namespace ddrun::agent
