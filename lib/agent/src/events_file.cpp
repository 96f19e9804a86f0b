#include "ddrun/agent/events_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <utility>

#include "atomic_file.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/event_thread.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

namespace {

constexpr std::size_t max_waiting_bytes = std::size_t{4} << 20U;
/// finish() waits this long for a reader of a FIFO to take some bytes.
constexpr std::chrono::seconds reader_timeout{2};
/// And this long for a disk.
constexpr std::chrono::seconds disk_timeout{60};

}  // namespace

/// A regular file to which whole lines are appended.
class EventsFile::LineFile {
 public:
  explicit LineFile(UniqueFd fd) : fd_(std::move(fd)) {}

  /// 0, or the errno of the loss.
  int write(std::string_view lines) {
    // After a partial write, end that line, so that the next one is kept.
    if (torn_ && ::write(fd_.get(), "\n", 1) == 1) torn_ = false;
    const ssize_t written = ::write(fd_.get(), lines.data(), lines.size());
    if (written == static_cast<ssize_t>(lines.size())) return 0;
    // A partial write means a full disk.
    const int error = written < 0 ? errno : ENOSPC;
    torn_ = torn_ || (written > 0 && lines[static_cast<std::size_t>(written) - 1] != '\n');
    return error;
  }

 private:
  UniqueFd fd_;
  bool torn_ = false;  ///< the last line has no end
};

/// The queue and its thread, which shares ownership because it may be blocked forever in open(2) or write(2).
class EventsFile::Writer {
 public:
  /// `path`: a FIFO to be opened; empty if `fd` is open.
  Writer(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  explicit Writer(std::unique_ptr<LineFile> file) : file_(std::move(file)) {}

  /// Runs on the writer's thread, forever.
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !waiting_.empty(); });
      const std::string lines = std::exchange(waiting_, {});
      in_flight_ = lines.size();
      lock.unlock();
      const int err = write(lines);
      lock.lock();
      in_flight_ = 0;
      if (err == 0) written_ += lines.size();
      else lost_ += lines.size();
      if (err != 0) error_ = err;
      changed_.notify_all();
    }
  }

  /// False if there is no room for them.
  bool add(std::string_view lines) {
    const std::scoped_lock lock(mutex_);
    if (waiting_.size() + in_flight_ + lines.size() > max_waiting_bytes) {
      lost_ += lines.size();
      return false;
    }
    waiting_ += lines;
    changed_.notify_all();
    return true;
  }

  [[nodiscard]] bool is_disk() const { return file_ != nullptr; }
  [[nodiscard]] const char* stall_reason() const {
    return is_disk() ? "the disk does not take them" : "no reader takes them";
  }

  struct Loss {
    std::uint64_t bytes = 0;
    std::string why;
  };
  /// The loss so far, after a write error.
  [[nodiscard]] Loss refused() {
    const std::scoped_lock lock(mutex_);
    return error_ == 0 ? Loss() : Loss{lost_, std::strerror(error_)};
  }

  /// Blocks until all is written, or nothing was written for reader_timeout or disk_timeout.
  Loss finish() {
    std::unique_lock lock(mutex_);
    const auto done = [this] { return waiting_.empty() && in_flight_ == 0; };
    std::uint64_t before = written_;
    const auto progress = [&] { return done() || written_ != before; };
    while (changed_.wait_for(lock, is_disk() ? disk_timeout : reader_timeout, progress) && !done()) before = written_;
    return {lost_ + waiting_.size() + in_flight_, error_ != 0 ? std::strerror(error_) : stall_reason()};
  }

 private:
  /// 0, or the errno.
  int write(const std::string& lines) {
    if (file_) return file_->write(lines);
    // open(2) of a FIFO waits for a reader; after EPIPE for the next one.
    if (!fd_) fd_.reset(::open(path_.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
    const int err = !fd_ || !write_all(fd_.get(), lines.data(), lines.size()) ? errno : 0;
    if (err == EPIPE && !path_.empty()) fd_.reset();
    return err;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::unique_ptr<LineFile> file_;  ///< used by the thread only, as are:
  std::string path_;                      ///< of a FIFO that is not open yet
  UniqueFd fd_;
  std::string waiting_;
  std::size_t in_flight_ = 0;
  std::uint64_t written_ = 0;
  std::uint64_t lost_ = 0;
  int error_ = 0;
};

std::string output_lost_event(std::string_view host, std::uint64_t bytes) {
  return one_line({{"event", "output_lost"}, {"host", host}, {"bytes", bytes}});
}

EventsFile::EventsFile() = default;
EventsFile::~EventsFile() { finish(); }

Result<void> EventsFile::check(const std::string& path) { return check_named_descriptor("--events", path); }

Result<void> EventsFile::open(const std::string& path) {
  const auto failed = [&] { return fail_errno(Errc::unavailable, concat("--events: cannot open ", path), errno); };
  UniqueFd fd;
  struct stat info {};
  if (const int own = named_descriptor(path); own >= 0) {
    auto copy = duplicate(own);
    if (!copy) return fail(Errc::unavailable, concat("--events: cannot open ", path, ": it is not open"));
    fd = std::move(*copy);
  } else if (::stat(path.c_str(), &info) == 0 && S_ISFIFO(info.st_mode)) {
    if (::access(path.c_str(), W_OK) != 0) return failed();
  } else {
    fd = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666));
    if (!fd) return failed();
  }
  if (fd && ::fstat(fd.get(), &info) != 0) return failed();
  device_ = info.st_dev;
  inode_ = info.st_ino;
  if (S_ISREG(info.st_mode)) return start_writer(std::make_shared<Writer>(std::make_unique<LineFile>(std::move(fd))));
  const bool opened = static_cast<bool>(fd);
  return start_writer(std::make_shared<Writer>(opened ? "" : path, std::move(fd)));
}

Result<void> EventsFile::start_writer(std::shared_ptr<Writer> writer) {
  auto thread = start_thread_signals_blocked("ddrun-events", [writer] { writer->run(); });
  if (!thread) return tl::unexpected(thread.error());
  thread->detach();
  writer_ = std::move(writer);
  return {};
}

bool EventsFile::is_same_file(int fd) const {
  struct stat info {};
  return writer_ && ::fstat(fd, &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

void EventsFile::write_line(const std::string& json) {
  if (!writer_ || json.size() < 2 || json.front() != '{') return;
  const bool empty = json == "{}";
  std::string line =
      concat("{\"time\":", utc(std::chrono::system_clock::now()).dump(), empty ? "" : ",", json.substr(1));
  // The line may come from the coordinator of another machine.
  std::replace(line.begin(), line.end(), '\n', ' ');
  write(line + "\n");
}

void EventsFile::write(std::string_view json_lines) {
  const std::string lines = json_for_terminal(std::string(json_lines));
  if (console_) return console_(lines);
  if (!writer_) return;
  const bool added = writer_->add(lines);
  if (writer_->is_disk()) {
    const Writer::Loss loss = writer_->refused();
    if (loss.bytes > 0) record_loss(loss.bytes, loss.why);
  }
  if (added || std::exchange(warned_, true)) return;
  say(Level::warning, concat("--events: ", writer_->stall_reason(), "; what comes now is lost"));
}

/// Warns at the first loss; finish() reports the sum.
void EventsFile::record_loss(std::uint64_t bytes, std::string why) {
  if (lost_ == 0) loss_reason_ = std::move(why);
  lost_ = bytes;
  if (!std::exchange(warned_, true)) warn_loss();
}

void EventsFile::warn_loss() {
  say(Level::warning, concat("--events: ", format_size(lost_), " were lost (", loss_reason_, ")"));
  reported_lost_ = lost_;
}

void EventsFile::finish() {
  if (const auto writer = std::exchange(writer_, nullptr)) {
    Writer::Loss loss = writer->finish();
    lost_ = loss.bytes;
    loss_reason_ = std::move(loss.why);
  }
  if (lost_ > reported_lost_) warn_loss();
}

}  // namespace ddrun::agent
