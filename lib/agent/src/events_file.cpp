#include "ddrun/agent/events_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "atomic_file.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "worker_json.hpp"

namespace ddrun::agent {

namespace {

/// finish() waits this long for a reader of a FIFO to take some bytes.
constexpr std::chrono::seconds reader_timeout{2};
/// And this long for a disk.
constexpr std::chrono::seconds disk_timeout{60};

}  // namespace

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
  is_disk_ = S_ISREG(info.st_mode);
  const bool opened = static_cast<bool>(fd);
  writer_ = TRY(BackgroundWriter::start("ddrun-events", {fd.release(), opened ? "" : path}));
  return {};
}

const char* EventsFile::stall_reason() const {
  return is_disk_ ? "the disk does not take them" : "no reader takes them";
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
  if (is_disk_) {
    const auto loss = writer_->refused();
    if (loss.bytes > 0) record_loss(loss.bytes, loss.why);
  }
  if (added || std::exchange(warned_, true)) return;
  say(Level::warning, concat("--events: ", stall_reason(), "; what comes now is lost"));
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
  if (auto writer = std::exchange(writer_, nullptr)) {
    auto loss = writer->finish(is_disk_ ? disk_timeout : reader_timeout);
    lost_ = loss.bytes;
    loss_reason_ = loss.why.empty() ? stall_reason() : std::move(loss.why);
  }
  if (lost_ > reported_lost_) warn_loss();
}

}  // namespace ddrun::agent
