#include "log_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

/// A line may go over a file's limit by this much rather than be torn.
constexpr std::size_t line_grace = 4096;
constexpr std::chrono::seconds retry_pause{1};

/// 0 or an errno: EEXIST if there is a file `to` already, which stays as it is.
int rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  // Some file systems, such as NFS, do not know how to. A second name is not made over another one either.
  if (::link(from.c_str(), to.c_str()) != 0) return errno;
  return ::unlink(from.c_str()) == 0 ? 0 : errno;
}

}  // namespace

LogFile::LogFile(std::string path, std::uint64_t rotate_bytes) : path_(std::move(path)), rotate_bytes_(rotate_bytes) {}

bool LogFile::open() {
  const auto try_open = [&] { return ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666); };
  int fd = try_open();
  if (fd < 0 && errno == ENOENT) {
    // The attempt may have begun while the disk was full.
    const std::string worker_dir = path_.substr(0, path_.rfind('/'));
    ::mkdir(worker_dir.substr(0, worker_dir.rfind('/')).c_str(), 0777);
    ::mkdir(worker_dir.c_str(), 0777);
    fd = try_open();
  }
  if (fd < 0) {
    const int err = errno;
    failed(err);
    errno = err;
    return false;
  }
  fd_.reset(fd);
  struct stat info {};
  size_ = ::fstat(fd, &info) == 0 ? static_cast<std::uint64_t>(info.st_size) : 0;
  return true;
}

void LogFile::write(std::string_view bytes) {
  if (failing_) {
    if (Clock::now() < retry_at_) return lose(bytes);
    // Go on with a whole line: half of one would be taken for something that the worker wrote.
    if (!lost_whole_lines_) {
      const std::size_t newline = bytes.find('\n');
      const std::size_t rest = newline == std::string_view::npos ? bytes.size() : newline + 1;
      lose(bytes.substr(0, rest));
      bytes.remove_prefix(rest);
      if (bytes.empty()) return;
    }
    failing_ = false;
    if (!fd_ && !open()) return lose(bytes);
    if (!at_line_start_) {
      const std::uint64_t lost = lost_;
      put("\n");
      lost_ = lost;  // this byte was not the worker's
    }
  } else if (!fd_ && !open()) {
    return lose(bytes);
  }
  while (!bytes.empty()) {
    if (failing_) return lose(bytes);
    const std::size_t count = fitting(bytes);
    if (count == 0) {
      rotate();
      continue;
    }
    put(bytes.substr(0, count));
    bytes.remove_prefix(count);
  }
}

/// How much of `bytes` still belongs in this file; 0: it is full.
std::size_t LogFile::fitting(std::string_view bytes) const {
  if (rotate_bytes_ == 0 || size_ + bytes.size() <= rotate_bytes_) return bytes.size();
  const std::size_t room = size_ < rotate_bytes_ ? static_cast<std::size_t>(rotate_bytes_ - size_) : 0;
  const std::size_t last_end = bytes.substr(0, room).rfind('\n');
  if (last_end != std::string_view::npos) return last_end + 1;
  if (at_line_start_ && size_ > 0) return 0;
  // In the middle of a line: a little more than the limit rather than a torn line, but not without end.
  const std::uint64_t most = rotate_bytes_ + line_grace;
  const std::string_view rest = bytes.substr(0, size_ < most ? static_cast<std::size_t>(most - size_) : 0);
  const std::size_t end = rest.find('\n');
  return end != std::string_view::npos ? end + 1 : rest.size();
}

void LogFile::rotate() {
  int err = EEXIST;
  // Names may be taken, by an earlier run or by anybody.
  while (err == EEXIST) err = rename_to_new(path_, concat(path_, '.', ++rotated_));
  // Somebody has removed the file: there is nothing to set aside, and a new one is wanted all the more.
  if (err != 0 && err != ENOENT) {
    // Better one file that is too big than bytes that are lost.
    rotation_error_ = concat("cannot set ", path_, " aside: ", std::strerror(err));
    rotate_bytes_ = 0;
    return;
  }
  fd_.reset();
  at_line_start_ = true;
  open();
}

void LogFile::put(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      failed(errno);
      return lose(bytes);
    }
    const auto count = static_cast<std::size_t>(written);
    size_ += count;
    at_line_start_ = bytes[count - 1] == '\n';
    bytes.remove_prefix(count);
  }
}

void LogFile::failed(int err) {
  if (first_error_.empty()) first_error_ = concat("cannot write ", path_, ": ", std::strerror(err));
  failing_ = true;
  retry_at_ = Clock::now() + retry_pause;
}

void LogFile::lose(std::string_view bytes) {
  if (bytes.empty()) return;
  lost_ += bytes.size();
  lost_whole_lines_ = bytes.back() == '\n';
}

}  // namespace ddrun::logs
