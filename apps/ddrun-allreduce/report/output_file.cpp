#include "report/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::allreduce {

namespace {

/// This process' own stream that is the same file, such as for /dev/stdout; -1: none is.
int own_stream(const struct stat& file) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (fstat(stream, &own) == 0 && own.st_dev == file.st_dev && own.st_ino == file.st_ino) return stream;
  }
  return -1;
}

}  // namespace

Result<OutputFile> OutputFile::open(std::string option, std::string path) {
  OutputFile file;
  const auto refused = [&] {
    return fail_errno(Errc::invalid_argument, concat(option, ": cannot write ", path), errno);
  };
  const bool standard = path == "-";
  file.fd_ = UniqueFd(standard ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                               : ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  struct stat info {};
  if (!file.fd_ || fstat(file.fd_.get(), &info) != 0) return refused();
  if (const int stream = own_stream(info); !standard && S_ISREG(info.st_mode) && stream >= 0) {
    // Its own position in the file would be the beginning, where the table is.
    file.fd_ = UniqueFd(fcntl(stream, F_DUPFD_CLOEXEC, 3));
    if (!file.fd_) return refused();
  } else {
    file.replaces_ = !standard && S_ISREG(info.st_mode);
  }
  file.option_ = std::move(option);
  file.path_ = standard ? "standard output" : std::move(path);
  return file;
}

Result<void> OutputFile::write(std::string_view text) {
  if (!write_all(fd_.get(), text.data(), text.size()) ||
      (replaces_ && ftruncate(fd_.get(), static_cast<off_t>(text.size())) != 0)) {
    return fail_errno(Errc::unavailable, concat(option_, ": cannot write ", path_), errno);
  }
  return {};
}

}  // namespace ddrun::allreduce
