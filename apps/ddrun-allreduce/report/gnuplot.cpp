#include "report/gnuplot.hpp"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::allreduce {

namespace {

// Files without a name are gnuplot's standard streams: no pipe can fill up, and nothing can be left behind.
Result<UniqueFd> nameless_file() {
  UniqueFd file(memfd_create("ddrun-allreduce plot", MFD_CLOEXEC));
  if (!file) return fail_errno(Errc::unavailable, "--plot: no memory for a picture", errno);
  return file;
}

Result<std::string> content_of(int file) {
  struct stat info {};
  if (fstat(file, &info) != 0) return fail_errno(Errc::unavailable, "--plot: cannot read what gnuplot wrote", errno);
  std::string text(static_cast<std::size_t>(info.st_size), '\0');
  std::size_t got = 0;
  while (got < text.size()) {
    const ssize_t more = pread(file, text.data() + got, text.size() - got, static_cast<off_t>(got));
    if (more <= 0) return fail_errno(Errc::unavailable, "--plot: cannot read what gnuplot wrote", errno);
    got += static_cast<std::size_t>(more);
  }
  return text;
}

Result<pid_t> spawn(const std::array<int, 3>& streams) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int stream = 0; stream < 3; ++stream) {
    posix_spawn_file_actions_adddup2(&actions, streams[static_cast<std::size_t>(stream)], stream);
  }
  // -d: no ~/.gnuplot.
  std::array<std::string, 3> words{"gnuplot", "-d", "-"};
  std::array<char*, 4> argv{words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, "gnuplot", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return fail_errno(Errc::unavailable, "--plot: cannot start gnuplot", error);
  return pid;
}

/// Its status as wait(2) has it. A child is never left behind.
Result<int> wait_for(pid_t pid, Deadline deadline) {
  const UniqueFd watched(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  bool late = false;
  while (watched) {
    const int left = poll_timeout(deadline);
    pollfd entry{watched.get(), POLLIN, 0};
    if (poll(&entry, 1, left) > 0) break;
    late = left == 0;
    if (late) break;
  }
  if (late) kill(pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (late) return fail(Errc::timeout, "--plot: gnuplot did not end in time");
  return status;
}

}  // namespace

Result<void> check_gnuplot() {
  const char* const path = std::getenv("PATH");
  for (const std::string& folder : split(path == nullptr ? "/bin:/usr/bin" : path, ':')) {
    const std::string program = concat(folder.empty() ? "." : folder, "/gnuplot");
    struct stat info {};
    if (stat(program.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(program.c_str(), X_OK) == 0) return {};
  }
  return fail(Errc::invalid_argument,
              "--plot: gnuplot, which draws, is not in PATH: install it "
              "(Debian and Ubuntu: apt-get install gnuplot-nox)");
}

Result<std::string> run_gnuplot(const std::string& script, Deadline deadline) {
  std::array<UniqueFd, 3> files;
  for (UniqueFd& file : files) {
    auto made = nameless_file();
    if (!made) return tl::unexpected(made.error());
    // Not 0, 1 or 2, if those are closed: they are what the child's streams become.
    auto moved = duplicate(made->get());
    if (!moved) return tl::unexpected(moved.error());
    file = std::move(*moved);
  }
  if (!write_all(files[0].get(), script.data(), script.size()) || lseek(files[0].get(), 0, SEEK_SET) != 0) {
    return fail_errno(Errc::unavailable, "--plot: no memory for a picture", errno);
  }
  const auto pid = spawn({files[0].get(), files[1].get(), files[2].get()});
  if (!pid) return tl::unexpected(pid.error());
  const auto status = wait_for(*pid, deadline);
  if (!status) return tl::unexpected(status.error());
  auto picture = content_of(files[1].get());
  if (picture && *status == 0 && !picture->empty()) return picture;
  const auto said = content_of(files[2].get());
  // It shows the line and points to the place first; what is wrong comes last.
  const std::vector<std::string> lines = split(said ? std::string(trim(*said)) : std::string(), '\n');
  return fail(Errc::unavailable, concat("--plot: gnuplot failed", lines.back().empty() ? "" : ": ", lines.back()));
}

}  // namespace ddrun::allreduce
