#include "ddrun/process/process_tree.hpp"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace ddrun::process {

namespace {

/// Reads a small /proc file; an empty string if it is gone.
std::string slurp(const char* path) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char buffer[1024];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  ::close(fd);
  return n > 0 ? std::string(buffer, static_cast<std::size_t>(n)) : std::string();
}

bool read_stat(pid_t pid, ProcessInfo& info) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const std::string stat = slurp(path);
  // The name may hold blanks and brackets: what follows its last ')' is regular.
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return false;
  char state = '?';
  int parent = 0, group = 0;
  if (std::sscanf(stat.c_str() + name_end + 1, " %c %d %d", &state, &parent, &group) != 3) return false;
  info = {pid, parent, group, state};
  return true;
}

}  // namespace

std::vector<ProcessInfo> descendants(pid_t root) {
  std::unordered_multimap<pid_t, ProcessInfo> children;
  DIR* dir = ::opendir("/proc");
  if (dir == nullptr) return {};
  while (const dirent* entry = ::readdir(dir)) {
    if (isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    ProcessInfo info;
    if (read_stat(::atoi(entry->d_name), info)) children.emplace(info.parent, info);
  }
  ::closedir(dir);
  std::vector<ProcessInfo> found;
  std::vector<pid_t> frontier{root};
  std::unordered_set<pid_t> seen{root};
  while (!frontier.empty()) {
    std::vector<pid_t> next;
    for (const pid_t parent : frontier) {
      const auto [first, last] = children.equal_range(parent);
      for (auto at = first; at != last; ++at) {
        if (!seen.insert(at->second.pid).second) continue;
        found.push_back(at->second);
        next.push_back(at->second.pid);
      }
    }
    frontier = std::move(next);
  }
  return found;
}

std::string process_name(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/comm", pid);
  std::string name = slurp(path);
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

std::size_t kill_all_descendants(std::chrono::steady_clock::time_point give_up) {
  sigset_t child_signal;
  ::sigemptyset(&child_signal);
  ::sigaddset(&child_signal, SIGCHLD);
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &child_signal, &before);
  std::size_t left = 0;
  while (true) {
    pid_t reaped;
    while ((reaped = ::waitpid(-1, nullptr, WNOHANG)) > 0 || (reaped < 0 && errno == EINTR)) {
    }
    if (reaped < 0) {  // ECHILD: nobody is left
      left = 0;
      break;
    }
    const auto all = descendants(::getpid());
    left = static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [](const ProcessInfo& info) { return info.state != 'Z'; }));
    for (const auto& info : all) {
      if (info.state != 'Z') ::kill(info.pid, SIGKILL);
    }
    const auto now = std::chrono::steady_clock::now();
    if (now >= give_up) break;
    // A death below us ends the wait at once; one below a descendant that is dying too is seen in the next turn.
    timespec pause{0, 20'000'000};
    ::sigtimedwait(&child_signal, nullptr, &pause);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return left;
}

}  // namespace ddrun::process
