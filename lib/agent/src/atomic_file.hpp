#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/shutdown_timeouts.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

/// The descriptor named by "-", /dev/stdout, /dev/fd/3 and the like; -1 for any other path.
inline int named_descriptor(std::string_view path) {
  if (path == "-" || path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"}) {
    if (!path.starts_with(folder)) continue;
    const auto number = parse_integer(path.substr(folder.size()), 0, 1 << 20);
    return number ? static_cast<int>(*number) : -1;
  }
  return -1;
}

/// Fails if the path given with `option` names one of ddrun's own descriptors, which are all closed on exec: the user
/// has not opened that one. Call it before Launcher::create(), which may mark the user's, too.
inline Result<void> check_named_descriptor(std::string_view option, const std::string& path) {
  const int fd = named_descriptor(path);
  if (fd < 0 || ::fcntl(fd, F_GETFD) == 0) return {};
  return fail(Errc::unavailable,
              concat(option, ": cannot open ", path, ": it is not open; open it in the shell: ", fd, ">FILE"));
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

/// Opens a device or a FIFO for writing. Blocks up to 5 s until a FIFO has a reader, or 1 s if this process has to end.
/// Fails with errno set.
inline UniqueFd open_for_reader(const std::string& path) {
  const auto begin = Clock::now();
  for (;;) {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    const Milliseconds limit = is_ending() ? shutdown::console_stall_limit : Milliseconds{5'000};
    if (fd || errno != ENXIO || Clock::now() > begin + limit) return fd;
    ::usleep(10'000);
  }
}

inline std::uint32_t random_number() {
  std::uint32_t number = 0;
  (void)fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

/// A new file beside `target` for write_file_atomically(). In a directory like /tmp other users must neither foresee
/// its name nor be there first. Fails with errno set.
inline UniqueFd make_temporary_file(const std::string& target, mode_t mode, std::string& path) {
  for (int attempts = 0;; ++attempts) {
    path = concat(target, ".", random_number(), ".tmp");
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
    if (fd || errno != EEXIST || attempts == 100) return fd;
  }
}

/// Gives a new file the owner, group and mode of the one that it replaces, as far as this user may.
inline void keep_owner_and_mode(int fd, const struct stat& old) {
  const bool same_group = ::fchown(fd, old.st_uid, old.st_gid) == 0 || ::fchown(fd, -1, old.st_gid) == 0;
  (void)::fchmod(fd, old.st_mode & (same_group ? 0777U : 0707U));
}

/// Replaces the file at `path` atomically; its owner and mode stay, unless it is another user's in a directory like
/// /tmp. Devices, pipes and /dev/stdout (also if it is a file with other content) are written to directly. A symbolic
/// link stays and its target is replaced. Blocks up to 5 s for the reader of a FIFO.
inline Result<void> write_file_atomically(const std::string& path, std::string_view text) {
  const auto failed = [&](int err) { return fail_errno(Errc::unavailable, "cannot write " + path, err); };
  if (const int own = named_descriptor(path); own >= 0) {
    if (!write_shared(own, text)) return failed(errno);
    return {};
  }
  std::string target = path;
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists) {
    if (!S_ISREG(info.st_mode)) {
      if (S_ISDIR(info.st_mode)) return failed(EISDIR);
      const UniqueFd fd = open_for_reader(path);
      if (!fd && errno == ENXIO && S_ISFIFO(info.st_mode)) {
        return fail(Errc::unavailable, "cannot write " + path + ": it has no reader");
      }
      if (!fd || !write_shared(fd.get(), text)) return failed(errno);
      return {};
    }
    if (char* real = ::realpath(path.c_str(), nullptr)) {
      target = real;
      ::free(real);  // NOLINT: allocated by realpath()
    }
  }
  struct stat directory {};
  const std::string parent = target.substr(0, target.rfind('/') + 1);
  const bool sticky = ::stat(concat(parent, ".").c_str(), &directory) == 0 && (directory.st_mode & S_ISVTX) != 0;
  const bool keep = exists && (info.st_uid == ::geteuid() || !sticky);
  std::string temporary;
  UniqueFd fd = make_temporary_file(target, keep ? 0600 : 0666, temporary);
  if (!fd) return failed(errno);
  if (keep) keep_owner_and_mode(fd.get(), info);
  if (!write_all(fd.get(), text.data(), text.size()) || ::close(fd.release()) != 0 ||
      ::rename(temporary.c_str(), target.c_str()) != 0) {
    const int err = errno;
    ::unlink(temporary.c_str());
    return failed(err);
  }
  return {};
}

}  // namespace ddrun::agent
