#include "watchdog.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "ddrun/base/io_context.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "evidence.hpp"

namespace ddrun::agent {

// ---- lines, and what expires

namespace {

using nlohmann::json;

/// Attempts to find a whole line behind a broken one.
constexpr int max_parse_attempts = 16;

std::optional<TimerRequest> parse_whole(std::string_view line) {
  const json content = json::parse(readable_json(line), nullptr, false);
  if (!content.is_object()) return std::nullopt;
  const auto pid = content.find("pid");
  const auto scope = content.find("scope_id");
  const auto expires = content.find("expiration_time");
  const auto signal = content.find("signal");
  const auto end = content.end();
  if (pid == end || !pid->is_number_integer() || scope == end || !scope->is_string() || expires == end ||
      !expires->is_number() || signal == end || !signal->is_number_integer()) {
    return std::nullopt;
  }
  TimerRequest request;
  const auto number = pid->get<std::int64_t>();
  const auto signal_number = signal->get<std::int64_t>();
  request.expires = expires->get<double>();
  // 0 and less are process groups, 1 is init.
  if (number <= 1 || number > std::numeric_limits<pid_t>::max() || signal_number > SIGRTMAX ||
      !std::isfinite(request.expires)) {
    return std::nullopt;
  }
  request.pid = static_cast<pid_t>(number);
  request.signal = static_cast<int>(std::max<std::int64_t>(signal_number, 0));
  request.scope = scope->get<std::string>();
  return request;
}

}  // namespace

std::optional<TimerRequest> parse_timer_request(std::string_view line) {
  std::size_t begin = 0;
  for (int attempt = 0; attempt < max_parse_attempts; ++attempt) {
    if (auto request = parse_whole(line.substr(begin))) return request;
    begin = line.find('{', begin + 1);
    if (begin == std::string_view::npos) break;
  }
  return std::nullopt;
}

bool TimerTable::set(TimerRequest request) {
  std::pair key{request.pid, request.scope};
  if (request.expires < 0) {
    timers_.erase(key);
    return true;
  }
  if (timers_.size() >= max_timers && timers_.count(key) == 0) return false;
  timers_.insert_or_assign(std::move(key), std::move(request));
  return true;
}

std::optional<double> TimerTable::next() const {
  std::optional<double> first;
  for (const auto& [key, timer] : timers_) {
    if (!first || timer.expires < *first) first = timer.expires;
  }
  return first;
}

std::vector<TimerRequest> TimerTable::take_expired(double now) {
  std::map<pid_t, TimerRequest> by_process;
  for (const auto& [key, timer] : timers_) {
    if (timer.expires > now) continue;
    const auto [at, is_new] = by_process.emplace(key.first, timer);
    if (is_new) continue;
    TimerRequest& first = at->second;
    const bool acts = timer.signal > 0;
    const bool first_acts = first.signal > 0;
    if (acts != first_acts ? acts : timer.expires < first.expires) first = timer;
  }
  std::vector<TimerRequest> expired;
  expired.reserve(by_process.size());
  for (auto& [pid, timer] : by_process) expired.push_back(std::move(timer));
  std::sort(expired.begin(), expired.end(), [](const auto& a, const auto& b) { return a.expires < b.expires; });
  drop([&](const TimerRequest& timer) { return by_process.count(timer.pid) != 0; });
  return expired;
}

// ---- the FIFO

namespace {

using boost::asio::posix::stream_descriptor;

/// PIPE_BUF, up to which a write into a FIFO is atomic, and the newline that PyTorch does not count.
constexpr std::size_t max_line_bytes = 4097;
/// Capacity of a FIFO: one read takes all of it.
constexpr std::size_t fifo_size = std::size_t{64} << 10U;

std::string random_name() {
  std::random_device random;
  std::string name = "watchdog_timer_";
  for (int i = 0; i < 32; ++i) name += "0123456789abcdef"[random() & 15U];
  return name;
}

/// Start time of the process in clock ticks since boot; 0 if it is gone or a zombie.
std::uint64_t start_time_of(pid_t pid) {
  const auto stat = read_process_stat(pid);
  return stat && stat->state != 'Z' ? stat->start_time : 0;
}

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::optional<std::string> timer_file_path(const LaunchSpec& spec, const Environment& parent) {
  std::string enabled(parent.find("TORCHELASTIC_ENABLE_FILE_TIMER").value_or(""));
  for (const ProgramSpec& program : spec.programs) {
    for (const auto& [name, value] : program.env) {
      if (name == "TORCHELASTIC_ENABLE_FILE_TIMER") enabled = value;
    }
  }
  if (enabled != "1") return std::nullopt;
  const auto named = parent.find("TORCHELASTIC_TIMER_FILE");
  // In a worker of another launcher the variable names that launcher's FIFO.
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
  // For writing too, so that there is no end of file when a worker closes it.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (!fd || ::fstat(fd.get(), &info) != 0) return cannot(errno);
  if (const int err = assign_descriptor(fifo_, std::move(fd)); err != 0) return cannot(err);
  path_ = std::move(path);
  device_ = info.st_dev;
  inode_ = info.st_ino;
  wait_for_requests();
  return {};
}

Result<void> FileTimer::renew() {
  table_.clear();
  if (path_.empty() || ::access(path_.c_str(), F_OK) == 0 || errno != ENOENT) return {};
  boost::system::error_code ec;
  fifo_.close(ec);
  return open(path_);
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
    // One read per turn, so that other events are not delayed.
    read_requests();
    wait_for_expiry();
    wait_for_requests();
  });
}

void FileTimer::read_requests() {
  std::array<char, fifo_size> bytes;
  const ssize_t size = ::read(fifo_.native_handle(), bytes.data(), bytes.size());
  if (size <= 0) return;
  std::string_view rest(bytes.data(), static_cast<std::size_t>(size));
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view piece = rest.substr(0, end);
    if (unfinished_.size() + piece.size() > max_line_bytes) {
      if (!skipping_) warn_once("a line that is too long");
      skipping_ = true;
      unfinished_.clear();
    }
    if (!skipping_) unfinished_ += piece;
    if (end == std::string_view::npos) break;
    if (!skipping_) read_line(unfinished_);
    unfinished_.clear();
    skipping_ = false;
    rest.remove_prefix(end + 1);
  }
}

void FileTimer::read_line(std::string_view line) {
  auto request = parse_timer_request(line);
  if (!request) {
    warn_once("something that is no timer");
    return;
  }
  if (request->expires >= 0) {
    request->start_time = start_time_of(request->pid);
    if (request->start_time == 0) return;  // the process is gone
  }
  if (table_.set(*request)) return;
  table_.drop([](const TimerRequest& timer) { return start_time_of(timer.pid) != timer.start_time; });
  if (!table_.set(std::move(*request))) {
    warn_once(concat("more than ", TimerTable::max_timers, " timers at once").c_str());
  }
}

void FileTimer::warn_once(const char* what) {
  if (std::exchange(warned_, true)) return;
  say(Level::warning, concat("the watchdog's FIFO ", path_, " was given ", what, ": ignored, as all further ones"));
}

void FileTimer::wait_for_expiry() {
  const auto next = table_.next();
  if (!next || paused_since_) {
    timer_.cancel();
    return;
  }
  // The clock's range ends shortly after the year 2200.
  const std::chrono::duration<double> when(std::min(*next, 9e9));
  const std::chrono::system_clock::time_point at(std::chrono::ceil<std::chrono::system_clock::duration>(when));
  timer_.expires_at(at);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec) return;
    expire();
    wait_for_expiry();
  });
}

void FileTimer::set_paused(bool still) {
  if (still == paused_since_.has_value()) return;
  read_requests();
  if (still) {
    paused_since_ = seconds_since_epoch();
  } else {
    table_.postpone(seconds_since_epoch() - *std::exchange(paused_since_, std::nullopt));
  }
  wait_for_expiry();
}

void FileTimer::expire() {
  // A release that was written in time counts, even if it is read late.
  read_requests();
  auto expired = table_.take_expired(seconds_since_epoch());
  std::erase_if(expired, [](const TimerRequest& timer) { return start_time_of(timer.pid) != timer.start_time; });
  if (!expired.empty()) on_expiry_(expired);
}

// ---- what is done

Watchdog::Watchdog(boost::asio::any_io_executor executor, WorkerGroup& group, JobRecord& record)
    : group_(group), record_(record), timer_(std::move(executor), [this](const auto& timers) { expired(timers); }) {}

void Watchdog::expired(const std::vector<TimerRequest>& timers) {
  std::map<pid_t, process::ProcessInfo> descendants;
  for (const auto& process : process::descendants(::getpid())) descendants.emplace(process.pid, process);
  for (const TimerRequest& timer : timers) {
    // The FIFO may name any pid: signal only descendants.
    const auto process = descendants.find(timer.pid);
    if (process != descendants.end()) {
      signal_late_process(timer, process->second);
    } else if (!std::exchange(foreign_timer_reported_, true)) {
      say(Level::warning, concat("the watchdog timer ", plain_line(timer.scope), " of process ", timer.pid,
                                 " has expired, which is not one of this job: left alone"));
    }
  }
}

void Watchdog::signal_late_process(const TimerRequest& timer, const process::ProcessInfo& process) {
  const auto& workers = group_.workers();
  const auto owner = std::find_if(workers.begin(), workers.end(), [&](const Worker& worker) {
    return worker.end.pid == process.pid || worker.end.pid == process.group;
  });
  std::string what = concat("watchdog timer ", plain_line(timer.scope));
  const bool its_child = owner == workers.end() || owner->end.pid != timer.pid;
  if (its_child) what += concat(" of its process ", timer.pid);
  what += timer.signal > 0 ? concat(" expired: ddrun sent ", signal_name(timer.signal))
                           : " expired; it names no signal, and nothing was sent";
  if (owner != workers.end()) say(Level::notice, concat(owner->end.name(), ": ", what));
  else say(Level::notice, what);
  if (timer.signal <= 0) return;
  if (owner != workers.end()) record_.note_timer(owner->end.pid, its_child, std::move(what));
  process::signal_descendant(process, timer.signal);
}

}  // namespace ddrun::agent
