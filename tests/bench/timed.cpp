// Runs one command and prints its time as one line of JSON. Python would add more to a time of two milliseconds than
// ddrun's share of it.
//
//   bench_timed [--lines N] [--limit SECONDS] [--output FILE] COMMAND…
//
// Without --lines: the time until the command has ended; its stdout goes to FILE, or to /dev/null.
// With --lines: the time until N lines that end in '~' have come out of it, stdout and stderr together. Then it gets
// SIGTERM. Otherwise it inherits stderr. At the limit, and once the command has ended, remaining descendants are
// killed.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

extern char** environ;

namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void die(const char* what) {
  fprintf(stderr, "bench_timed: %s: %s\n", what, strerror(errno));
  exit(125);
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Reads until N marked lines, end of file or the limit. Prints the rest of the output if it ends early.
long read_lines(int fd, long wanted, Clock::time_point limit) {
  static char buffer[1 << 16];
  long lines = 0;
  char last = '\0';
  ssize_t size = 0;
  while (lines < wanted) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - Clock::now()).count();
    pollfd ready{fd, POLLIN, 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) == 0) break;
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) break;
    for (ssize_t i = 0; i < n; ++i) {
      lines += buffer[i] == '\n' && last == '~' ? 1 : 0;
      last = buffer[i];
    }
    size = n;
  }
  if (lines < wanted) fwrite(buffer, 1, static_cast<size_t>(size), stderr);
  return lines;
}

/// The command's wait status, or -1 at the limit. Drains its output meanwhile.
int wait_for(pid_t pid, int fd, Clock::time_point limit, rusage& use) {
  static char buffer[1 << 16];
  int status = 0;
  while (::wait4(pid, &status, WNOHANG, &use) == 0) {
    if (Clock::now() >= limit) return -1;
    pollfd ready{fd, POLLIN, 0};
    ::poll(&ready, 1, 5);
    if ((ready.revents & POLLIN) != 0) [[maybe_unused]]
      const ssize_t n = ::read(fd, buffer, sizeof buffer);
    else if (ready.revents != 0) ::usleep(1000);
  }
  return status;
}

/// Orphaned descendants are reparented to this process, a subreaper.
void kill_descendants() {
  const auto limit = Clock::now() + std::chrono::seconds(10);
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%d/children", ::getpid());
  while (Clock::now() < limit) {
    FILE* children = fopen(path, "re");
    if (children == nullptr) return;
    int pid;
    bool any = false;
    while (fscanf(children, "%d", &pid) == 1) {
      any = true;
      ::kill(pid, SIGKILL);
    }
    fclose(children);
    if (!any) return;
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    ::usleep(1000);
  }
}

void on_alarm(int) {}

}  // namespace

int main(int argc, char** argv) {
  long lines = 0;
  double limit_seconds = 60;
  const char* output = nullptr;
  int at = 1;
  for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
    if (strcmp(argv[at], "--lines") == 0) lines = atol(argv[at + 1]);
    else if (strcmp(argv[at], "--limit") == 0) limit_seconds = atof(argv[at + 1]);
    else if (strcmp(argv[at], "--output") == 0) output = argv[at + 1];
    else break;
  }
  if (at >= argc || argv[at][0] == '-') {
    fprintf(stderr, "usage: bench_timed [--lines N] [--limit SECONDS] [--output FILE] COMMAND...\n");
    return 2;
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  int pipe_ends[2] = {-1, -1};
  if (lines > 0 && ::pipe2(pipe_ends, O_CLOEXEC) != 0) die("pipe");
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) die("/dev/null");
  const int to = output ? ::open(output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : null;
  if (to < 0) die(output);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, null, 0);
  posix_spawn_file_actions_adddup2(&files, lines > 0 ? pipe_ends[1] : to, 1);
  if (lines > 0) posix_spawn_file_actions_adddup2(&files, pipe_ends[1], 2);
  struct sigaction action {};
  action.sa_handler = on_alarm;
  ::sigaction(SIGALRM, &action, nullptr);

  const auto limit = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limit_seconds));
  const auto start = Clock::now();
  pid_t pid;
  if (const int error = ::posix_spawnp(&pid, argv[at], &files, nullptr, argv + at, environ); error != 0) {
    errno = error;
    die(argv[at]);
  }
  double wall = 0;
  int status = -1;
  bool timed_out = false;
  long seen = 0;
  rusage use{};
  if (lines > 0) {
    ::close(pipe_ends[1]);
    seen = read_lines(pipe_ends[0], lines, start + limit);
    wall = seconds_since(start);
    timed_out = seen < lines && Clock::now() >= start + limit;
    ::kill(pid, SIGTERM);
    status = wait_for(pid, pipe_ends[0], Clock::now() + std::chrono::seconds(30), use);
  } else {
    ::alarm(static_cast<unsigned>(limit_seconds) + 1);
    if (::wait4(pid, &status, 0, &use) != pid) timed_out = true;
    wall = seconds_since(start);
    ::alarm(0);
  }
  if (timed_out || status == -1) {
    ::kill(pid, SIGKILL);
    ::wait4(pid, &status, 0, &use);
  }
  kill_descendants();
  printf(
      "{\"seconds\": %.9f, \"lines\": %ld, \"timed_out\": %s, \"code\": %d, \"signal\": %d, \"cpu_seconds\": %.6f}\n",
      wall, seen, timed_out ? "true" : "false", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
      WIFSIGNALED(status) ? WTERMSIG(status) : 0,
      static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
          static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6);
  return 0;
}
