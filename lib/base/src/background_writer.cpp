#include "ddrun/base/background_writer.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "ddrun/base/event_thread.hpp"

namespace ddrun {

/// The state of the thread.
struct BackgroundWriter::Work {
  Work(Target to, UniqueFd from_pipe, UniqueFd last_bell)
      : target(std::move(to)), pipe(std::move(from_pipe)), last(std::move(last_bell)) {}

  void run();
  /// Blocks; nullopt after the last bytes.
  [[nodiscard]] std::optional<std::string> next();
  [[nodiscard]] std::string read_pipe() const;
  /// 0, or the errno.
  [[nodiscard]] int write(std::string_view bytes);
  [[nodiscard]] int write_file(std::string_view bytes);
  [[nodiscard]] bool wait_for_room() const;

  Target target;
  const UniqueFd pipe;  ///< none: bytes come by `waiting`
  const UniqueFd last;  ///< readable once all is in the pipe; end-of-file would need all duplicates closed
  // Used by the thread:
  bool is_mid_line = false;      ///< what was written last is no end of a line
  bool in_dropped_line = false;  ///< after a failed write the rest of that line is dropped, too
  bool is_torn = false;          ///< the line that was begun before that has no end

  std::mutex mutex;  ///< protects the members below
  std::condition_variable changed;
  std::string waiting;
  std::size_t in_flight = 0;
  std::uint64_t rounds = 0;
  std::uint64_t lost = 0;
  int error = 0;  ///< of the last failed write
  bool finishing = false;
  bool done = false;
};

std::string BackgroundWriter::Work::read_pipe() const {
  std::array<pollfd, 2> events{{{pipe.get(), POLLIN, 0}, {last.get(), POLLIN, 0}}};
  while (::poll(events.data(), events.size(), -1) < 0) {
    if (errno != EINTR && errno != ENOMEM) return {};
  }
  if ((events[0].revents & POLLIN) == 0) return {};
  std::string chunk(std::size_t{64} << 10U, '\0');
  chunk.resize(static_cast<std::size_t>(std::max<ssize_t>(::read(pipe.get(), chunk.data(), chunk.size()), 0)));
  return chunk;
}

std::optional<std::string> BackgroundWriter::Work::next() {
  std::string chunk;
  if (pipe) chunk = read_pipe();
  std::unique_lock lock(mutex);
  if (!pipe) {
    changed.wait(lock, [this] { return finishing || !waiting.empty(); });
    chunk = std::exchange(waiting, {});
  }
  in_flight = chunk.size();
  return chunk.empty() ? std::nullopt : std::optional(std::move(chunk));
}

/// A user's descriptor may be non-blocking.
bool BackgroundWriter::Work::wait_for_room() const {
  pollfd room{target.file, POLLOUT, 0};
  return ::poll(&room, 1, -1) > 0 || errno == EINTR;
}

int BackgroundWriter::Work::write_file(std::string_view bytes) {
  if (in_dropped_line) {
    const std::size_t end = bytes.find('\n');
    in_dropped_line = end == std::string_view::npos;
    bytes.remove_prefix(in_dropped_line ? bytes.size() : end + 1);
  }
  // What follows a line without an end begins a new one.
  if (is_torn && !bytes.empty() && ::write(target.file, "\n", 1) == 1) is_torn = is_mid_line = false;
  while (!bytes.empty()) {
    const ssize_t n = ::write(target.file, bytes.data(), bytes.size());
    if (n < 0 && (errno == EINTR || (errno == EAGAIN && wait_for_room()))) continue;
    if (n < 0) break;
    if (n > 0) is_mid_line = bytes[static_cast<std::size_t>(n) - 1] != '\n';
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  const int err = bytes.empty() ? 0 : errno;
  if (err != 0) {
    in_dropped_line = bytes.back() != '\n';
    is_torn = is_mid_line;
  }
  return err;
}

int BackgroundWriter::Work::write(std::string_view bytes) {
  // open(2) of a FIFO waits for a reader; after EPIPE for the next one.
  if (target.file < 0) target.file = ::open(target.fifo.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (target.file < 0) return errno;
  const int err = write_file(bytes);
  if (err == EPIPE && !target.fifo.empty()) {
    ::close(std::exchange(target.file, -1));
    is_torn = is_mid_line = false;
  }
  return err;
}

void BackgroundWriter::Work::run() {
  while (const auto chunk = next()) {
    const int err = write(*chunk);
    const std::scoped_lock lock(mutex);
    in_flight = 0;
    ++rounds;
    if (err != 0) error = err, lost += chunk->size();
    changed.notify_all();
  }
  const std::scoped_lock lock(mutex);
  done = true;
  changed.notify_all();
}

Result<std::unique_ptr<BackgroundWriter>> BackgroundWriter::start(const char* thread, Target target, bool by_pipe) {
  Pipe pipe;
  UniqueFd last;
  if (by_pipe) {
    pipe = TRY(make_pipe());
    last = UniqueFd(::eventfd(0, EFD_CLOEXEC));
    if (!last) return fail_errno(Errc::unavailable, "cannot make an event", errno);
  }
  auto work = std::make_shared<Work>(std::move(target), std::move(pipe.read), std::move(last));
  TRY(start_thread_signals_blocked(thread, [work] { work->run(); })).detach();
  return std::unique_ptr<BackgroundWriter>(new BackgroundWriter(std::move(work), std::move(pipe.write)));
}

BackgroundWriter::~BackgroundWriter() = default;

bool BackgroundWriter::add(std::string_view lines) {
  const std::scoped_lock lock(work_->mutex);
  if (work_->waiting.size() + work_->in_flight + lines.size() > max_waiting_bytes) {
    work_->lost += lines.size();
    return false;
  }
  work_->waiting += lines;
  work_->changed.notify_all();
  return true;
}

BackgroundWriter::Loss BackgroundWriter::refused() const {
  const std::scoped_lock lock(work_->mutex);
  if (work_->error == 0) return {};
  return {work_->lost, ::strerror(work_->error)};
}

BackgroundWriter::Loss BackgroundWriter::finish(std::chrono::milliseconds stall) {
  const std::uint64_t one = 1;
  if (work_->last) (void)!::write(work_->last.get(), &one, sizeof one);
  std::unique_lock lock(work_->mutex);
  work_->finishing = true;
  work_->changed.notify_all();
  std::uint64_t before = work_->rounds;
  const auto progress = [&] { return work_->done || work_->rounds != before; };
  while (work_->changed.wait_for(lock, stall, progress) && !work_->done) before = work_->rounds;
  return {work_->lost + work_->waiting.size() + work_->in_flight,
          work_->error == 0 ? std::string() : ::strerror(work_->error), !work_->done};
}

}  // namespace ddrun
