#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <string_view>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

/// The descriptor named by "-", /dev/stdout, /dev/fd/3 and the like; -1 for any other path.
inline int named_descriptor(std::string_view path) {
  if (path == "-" || path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const auto number = parse_integer(path.substr(folder.size()), 0, 1 << 20);
    return number ? static_cast<int>(*number) : -1;
  }
  return -1;
}

/// Whether write_file_atomically() can replace it repeatedly.
inline bool is_replaceable_file(const std::string& path) {
  struct stat info {};
  return !path.empty() && named_descriptor(path) < 0 && (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode));
}

/// Makes an empty file with mode 0600 in $TMPDIR or /tmp and returns its path; empty on failure.
inline std::string make_private_file(std::string_view name) {
  const auto place = variable("TMPDIR").value_or("/tmp");
  std::string path = concat(place, "/", name, "XXXXXX");
  const UniqueFd fd(::mkostemp(path.data(), O_CLOEXEC));
  return fd ? path : std::string();
}

/// Opens a device or a FIFO for writing. Blocks up to 5 s until a FIFO has a reader. Fails with errno set.
inline UniqueFd open_for_reader(const std::string& path) {
  const Deadline deadline = Clock::now() + std::chrono::seconds(5);
  for (;;) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (fd || errno != ENXIO || Clock::now() > deadline) return fd;
    ::usleep(10'000);
  }
}

/// Replaces the file at `path` atomically. Devices, pipes and /dev/stdout (also if it is a file with other content) are
/// written to directly. A symbolic link stays and its target is replaced. Blocks up to 5 s for the reader of a FIFO.
inline Result<void> write_file_atomically(const std::string& path, std::string_view text) {
  const auto failed = [&](int err) { return fail_errno(Errc::unavailable, "cannot write " + path, err); };
  if (const int own = named_descriptor(path); own >= 0) {
    if (!write_all(own, text.data(), text.size())) return failed(errno);
    return {};
  }
  std::string target = path;
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) {
      if (S_ISDIR(info.st_mode)) return failed(EISDIR);
      const UniqueFd fd = open_for_reader(path);
      if (!fd && errno == ENXIO && S_ISFIFO(info.st_mode)) {
        return fail(Errc::unavailable, "cannot write " + path + ": it has no reader");
      }
      if (!fd || !write_all(fd.get(), text.data(), text.size())) return failed(errno);
      return {};
    }
    if (char* real = ::realpath(path.c_str(), nullptr)) {
      target = real;
      ::free(real);  // NOLINT: allocated by realpath()
    }
  }
  const std::string temporary = target + "." + std::to_string(::getpid()) + ".tmp";
  UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd) return failed(errno);
  if (!write_all(fd.get(), text.data(), text.size()) || ::close(fd.release()) != 0 ||
      ::rename(temporary.c_str(), target.c_str()) != 0) {
    const int err = errno;
    ::unlink(temporary.c_str());
    return failed(err);
  }
  return {};
}

}  // namespace ddrun::agent
