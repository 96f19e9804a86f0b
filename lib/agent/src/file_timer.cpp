#include "file_timer.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <utility>

#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

namespace {

using boost::asio::posix::stream_descriptor;

/// PIPE_BUF, up to which a write into a FIFO is one piece, and the newline that PyTorch does not count.
constexpr std::size_t longest_line = 4097;
/// What a FIFO holds: all that was in it at one moment is read with this.
constexpr std::size_t fifo_size = std::size_t{64} << 10U;

std::string random_name() {
  std::random_device random;
  std::string name = "watchdog_timer_";
  for (int i = 0; i < 32; ++i) name += "0123456789abcdef"[random() & 15U];
  return name;
}

/// When the process was born, in clock ticks since the machine's start; 0 if it is gone or a zombie.
std::uint64_t birth_of(pid_t pid) {
  const auto stat = read_process_stat(pid);
  return stat && stat->state != 'Z' ? stat->born : 0;
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::optional<std::string> wanted_timer_file(const LaunchSpec& spec, const Environment& parent) {
  std::string enabled(parent.find("TORCHELASTIC_ENABLE_FILE_TIMER").value_or(""));
  for (const auto& [name, value] : spec.env) {
    if (name == "TORCHELASTIC_ENABLE_FILE_TIMER") enabled = value;
  }
  if (enabled != "1") return std::nullopt;
  const auto named = parent.find("TORCHELASTIC_TIMER_FILE");
  // In a worker of another launcher the name is that of the other's FIFO.
  if (named && !named->empty() && !parent.find("TORCHELASTIC_RUN_ID")) return std::string(*named);
  const auto directory = parent.find("TMPDIR");
  return concat(directory && !directory->empty() ? *directory : "/tmp", '/', random_name());
}

FileTimer::FileTimer(boost::asio::any_io_executor executor,
                     std::function<void(const std::vector<TimerRequest>&)> on_expiry)
    : fifo_(executor), timer_(executor), on_expiry_(std::move(on_expiry)) {}

Result<void> FileTimer::open(std::string path) {
  const auto cannot = [&](int error) {
    return fail_errno(Errc::unavailable, concat("cannot make the watchdog's FIFO ", path), error);
  };
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) {
    if (!S_ISFIFO(info.st_mode)) {
      return fail(Errc::unavailable,
                  concat("TORCHELASTIC_TIMER_FILE=", path, " is there already, and is no FIFO: name another one"));
    }
    ::unlink(path.c_str());
  }
  if (::mkfifo(path.c_str(), 0600) != 0) return cannot(errno);
  // For writing too: then it has no end when a worker closes it.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  boost::system::error_code ec;
  if (!fd || ::fstat(fd.get(), &info) != 0) return cannot(errno);
  fifo_.assign(fd.get(), ec);
  if (ec) return cannot(ec.value());
  (void)fd.release();
  path_ = std::move(path);
  device_ = info.st_dev;
  inode_ = info.st_ino;
  wait_for_requests();
  return {};
}

void FileTimer::close() {
  struct stat info {};
  if (!path_.empty() && ::lstat(path_.c_str(), &info) == 0 && info.st_dev == device_ && info.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
  path_.clear();
  boost::system::error_code ec;
  fifo_.close(ec);
  timer_.cancel();
}

void FileTimer::wait_for_requests() {
  fifo_.async_wait(stream_descriptor::wait_read, [this](const boost::system::error_code& ec) {
    if (ec) return;
    // One piece at a time: ddrun has other things to see to.
    (void)read_requests();
    wait_for_expiry();
    wait_for_requests();
  });
}

bool FileTimer::read_requests() {
  std::array<char, fifo_size> bytes;
  const ssize_t size = ::read(fifo_.native_handle(), bytes.data(), bytes.size());
  if (size <= 0) return false;
  std::string_view rest(bytes.data(), static_cast<std::size_t>(size));
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view piece = rest.substr(0, end);
    if (unfinished_.size() + piece.size() > longest_line) {
      if (!skipping_) complain("a line that is too long");
      skipping_ = true;
      unfinished_.clear();
    }
    if (!skipping_) unfinished_ += piece;
    if (end == std::string_view::npos) break;
    if (!skipping_) take_line(unfinished_);
    unfinished_.clear();
    skipping_ = false;
    rest.remove_prefix(end + 1);
  }
  return true;
}

void FileTimer::take_line(std::string_view line) {
  auto request = parse_timer_request(line);
  if (!request) {
    complain("something that is no timer");
    return;
  }
  if (request->expires >= 0) {
    request->born = birth_of(request->pid);
    if (request->born == 0) return;  // it is gone already
  }
  if (table_.take(*request)) return;
  table_.drop([](const TimerRequest& timer) { return birth_of(timer.pid) != timer.born; });
  if (!table_.take(std::move(*request))) {
    complain(concat("more than ", TimerTable::most_timers, " timers at once").c_str());
  }
}

void FileTimer::complain(const char* what) {
  if (std::exchange(complained_, true)) return;
  say(Level::warning, concat("the watchdog's FIFO ", path_, " was given ", what, ": ignored, as all further ones"));
}

void FileTimer::wait_for_expiry() {
  const auto next = table_.next();
  if (!next || still_since_) {
    timer_.cancel();
    return;
  }
  // The clock cannot tell times much later than the year 2200.
  const std::chrono::duration<double> when(std::min(*next, 9e9));
  const std::chrono::system_clock::time_point at(std::chrono::ceil<std::chrono::system_clock::duration>(when));
  timer_.expires_at(at);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec) return;
    expire();
    wait_for_expiry();
  });
}

void FileTimer::stand_still(bool still) {
  if (still == still_since_.has_value()) return;
  (void)read_requests();
  if (still) {
    still_since_ = seconds_since_epoch();
  } else {
    table_.put_off(seconds_since_epoch() - *std::exchange(still_since_, std::nullopt));
  }
  wait_for_expiry();
}

void FileTimer::expire() {
  // A release that was written in time counts, also if we have been slow to read it.
  (void)read_requests();
  auto expired = table_.take_expired(seconds_since_epoch());
  std::erase_if(expired, [](const TimerRequest& timer) { return birth_of(timer.pid) != timer.born; });
  if (!expired.empty()) on_expiry_(expired);
}

}  // namespace ddrun::agent
