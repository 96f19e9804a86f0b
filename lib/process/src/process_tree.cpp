#include "ddrun/process/process_tree.hpp"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/helper/run.hpp"

namespace ddrun::process {

namespace {

std::optional<ProcessInfo> process_info(pid_t pid) {
  const auto stat = read_process_stat(pid);
  if (!stat) return std::nullopt;
  return ProcessInfo{pid, stat->parent, stat->group, stat->state, stat->session, stat->start_time};
}

/// Empty if /proc cannot be read.
std::vector<ProcessInfo> all_processes() {
  std::vector<ProcessInfo> all;
  for (const std::string& name : names_in("/proc")) {
    const auto pid = whole_number<pid_t>(name);
    if (const auto info = pid ? process_info(*pid) : std::nullopt) all.push_back(*info);
  }
  return all;
}

/// Reads the whole of /proc. Nothing if it cannot be read.
std::optional<std::vector<ProcessInfo>> scan_for_descendants(pid_t root, const std::vector<pid_t>& excluded) {
  const auto all = all_processes();
  if (all.empty()) return std::nullopt;
  std::unordered_multimap<pid_t, ProcessInfo> children;
  for (const ProcessInfo& info : all) children.emplace(info.parent, info);
  std::vector<ProcessInfo> found;
  std::vector<pid_t> frontier{root};
  std::unordered_set<pid_t> seen{root};
  seen.insert(excluded.begin(), excluded.end());
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

/// A thread's children, from /proc/PID/task/TID/children. Nothing if the thread has ended or there is no such file.
std::optional<std::string> read_children(const std::string& path) {
  constexpr std::size_t limit = 1U << 24U;
  auto pids = read_small_file(path, limit);
  // The kernel may skip a child when another that it has shown is reaped during the reading, so two must be equal.
  while (pids && !pids->empty()) {
    auto again = read_small_file(path, limit);
    if (again == pids) break;
    pids = std::move(again);
  }
  return pids;
}

/// The children of all threads, zombies included. Nothing if the process has ended or the kernel is built without
/// CONFIG_PROC_CHILDREN, as DDRUN_NO_PROC_CHILDREN=1 pretends for tests.
std::optional<std::vector<pid_t>> children_of(pid_t pid) {
  if (::getenv("DDRUN_NO_PROC_CHILDREN") != nullptr) return std::nullopt;
  std::optional<std::vector<pid_t>> children;
  const std::string threads = concat("/proc/", pid, "/task");
  for (const std::string& thread : names_in(threads)) {
    const auto pids = read_children(concat(threads, "/", thread, "/children"));
    if (!pids) continue;
    if (!children) children.emplace();
    if (pids->empty()) continue;
    for (const std::string& child : split(*pids, ' ')) children->push_back(::atoi(child.c_str()));
  }
  return children;
}

/// Nothing if /proc cannot be read.
std::optional<std::vector<ProcessInfo>> find_descendants(pid_t root, const std::vector<pid_t>& excluded) {
  auto children = children_of(root);
  if (!children) return scan_for_descendants(root, excluded);
  std::vector<ProcessInfo> found;
  std::unordered_set<pid_t> seen{root};
  seen.insert(excluded.begin(), excluded.end());
  for (std::size_t at = 0;; ++at) {
    for (const pid_t pid : children.value_or(std::vector<pid_t>())) {
      if (!seen.insert(pid).second) continue;
      if (const auto info = process_info(pid)) found.push_back(*info);
    }
    if (at == found.size()) return found;
    children = children_of(found[at].pid);
  }
}

}  // namespace

std::vector<ProcessInfo> descendants(pid_t root, const std::vector<pid_t>& excluded) {
  return find_descendants(root, excluded).value_or(std::vector<ProcessInfo>());
}

std::vector<ProcessInfo> workers_and_their_descendants() { return descendants(::getpid(), helper::running_helpers()); }

bool has_workers() {
  if (!has_children()) return false;
  const auto helpers = helper::running_helpers();
  if (helpers.empty()) return true;
  const auto children = children_of(::getpid());
  if (!children) return !descendants(::getpid(), helpers).empty();
  return std::any_of(children->begin(), children->end(),
                     [&](pid_t child) { return std::find(helpers.begin(), helpers.end(), child) == helpers.end(); });
}

bool signal_descendant(const ProcessInfo& info, int signal) {
  const pid_t self = ::getpid();
  if (info.parent == self) return ::kill(info.pid, signal) == 0;
  const UniqueFd held(static_cast<int>(::syscall(SYS_pidfd_open, info.pid, 0)));
  if (!held && errno == ESRCH) return false;
  const auto now = read_process_stat(info.pid);
  // A process whose parent has died meanwhile was adopted by this one.
  if (!now || now->start_time != info.start_time || (now->parent != info.parent && now->parent != self)) {
    return false;
  }
  if (held && ::syscall(SYS_pidfd_send_signal, held.get(), signal, nullptr, 0) == 0) return true;
  if (held && errno != ENOSYS && errno != EPERM) return false;
  return ::kill(info.pid, signal) == 0;
}

bool kill_workers_without_reaping() {
  bool any = false;
  for (const ProcessInfo& info : workers_and_their_descendants()) {
    if (info.state != 'Z' && signal_descendant(info, SIGKILL)) any = true;
  }
  return any;
}

bool own_group_is_orphaned() {
  const pid_t group = ::getpgrp();
  const pid_t session = ::getsid(0);
  const auto all = all_processes();
  std::unordered_map<pid_t, ProcessInfo> by_pid;
  for (const ProcessInfo& info : all) by_pid.emplace(info.pid, info);
  return std::none_of(all.begin(), all.end(), [&](const ProcessInfo& member) {
    if (member.group != group || member.state == 'Z') return false;
    const auto parent = by_pid.find(member.parent);
    return parent != by_pid.end() && parent->second.session == session && parent->second.group != group;
  });
}

bool has_ended(pid_t child) {
  siginfo_t info{};
  const int found = ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT);
  return found != 0 || info.si_pid != 0;
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

namespace {

bool waits_for_terminal(pid_t pid, const std::string& thread, dev_t terminal) {
  const auto is_terminal = [&](unsigned long fd) {
    struct stat info {};
    return ::stat(concat("/proc/", pid, "/fd/", fd).c_str(), &info) == 0 && S_ISCHR(info.st_mode) &&
           info.st_rdev == terminal;
  };
  const auto text = read_small_file(concat("/proc/", pid, "/task/", thread, "/syscall"));
  long call = -1;
  unsigned long first = 0;
  unsigned long second = 0;
  if (!text || ::sscanf(text->c_str(), "%ld %lx %lx", &call, &first, &second) != 3) return false;
  if (call == SYS_read || call == SYS_readv) return is_terminal(first);
  bool selects = call == SYS_pselect6;
#ifdef SYS_select
  selects = selects || call == SYS_select;
#endif
  if (!selects || first > FD_SETSIZE) return false;
  // readline waits in select(). The kernel writes the set only when the call returns, so it can be read meanwhile.
  fd_set set;
  FD_ZERO(&set);
  iovec local{&set, (first + 7) / 8};
  iovec remote{reinterpret_cast<void*>(second), local.iov_len};  // NOLINT: an address of the other process
  if (::process_vm_readv(pid, &local, 1, &remote, 1, 0) <= 0) return false;
  for (unsigned long fd = 0; fd < first; ++fd) {
    if (FD_ISSET(fd, &set) && is_terminal(fd)) return true;
  }
  return false;
}

}  // namespace

std::vector<ProcessInfo> readers_of_terminal(dev_t terminal) {
  auto found = workers_and_their_descendants();
  std::erase_if(found, [&](const ProcessInfo& info) {
    struct stat input {};
    if (::stat(concat("/proc/", info.pid, "/fd/0").c_str(), &input) != 0 || input.st_rdev != terminal) return true;
    return std::ranges::none_of(names_in(concat("/proc/", info.pid, "/task")), [&](const std::string& thread) {
      return waits_for_terminal(info.pid, thread, terminal);
    });
  });
  return found;
}

std::string process_name(pid_t pid) { return read_small_file(concat("/proc/", pid, "/comm")).value_or(""); }

std::optional<std::size_t> kill_all_descendants(std::chrono::steady_clock::time_point give_up, pid_t excluded) {
  sigset_t child_signal;
  ::sigemptyset(&child_signal);
  ::sigaddset(&child_signal, SIGCHLD);
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &child_signal, &before);
  std::optional<std::size_t> left = 0;
  while (true) {
    pid_t reaped;
    while ((reaped = ::waitpid(-1, nullptr, WNOHANG)) > 0 || (reaped < 0 && errno == EINTR)) {
    }
    if (reaped < 0) {  // ECHILD: no child is left
      left = 0;
      break;
    }
    auto all = find_descendants(::getpid(), {excluded});
    if (all && all->empty() && excluded != 0) {
      left = 0;
      break;
    }
    if (all) {
      std::erase_if(*all, [](const ProcessInfo& info) { return info.state == 'Z'; });
      left = all->size();
      for (const auto& info : *all) signal_descendant(info, SIGKILL);
    } else {
      left.reset();
    }
    const auto now = std::chrono::steady_clock::now();
    if (now >= give_up) break;
    // SIGCHLD of a child ends the wait at once; orphans of a dying descendant are found in the next turn.
    timespec pause{0, 20'000'000};
    ::sigtimedwait(&child_signal, nullptr, &pause);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return left;
}

}  // namespace ddrun::process
