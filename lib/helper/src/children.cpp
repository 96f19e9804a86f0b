#include "children.hpp"

#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

#include "ddrun/base/text.hpp"
#include "ddrun/helper/run.hpp"

namespace ddrun::helper {

namespace {

std::mutex mutex;
/// The running helpers, with the wait status of those already reaped by reap().
std::map<pid_t, std::optional<int>> running_children;
std::set<pid_t> other_children;  ///< of register_child()
std::span<std::atomic<pid_t>> mirror;

void replace_in_mirror(pid_t old, pid_t by) {
  const auto slot = std::find(mirror.begin(), mirror.end(), old);
  if (slot != mirror.end()) *slot = by;
}

}  // namespace

Result<pid_t> spawn(const std::vector<std::string>& argv, const std::array<int, 3>& streams, bool own_group,
                    const std::string& variable) {
  std::vector<char*> variables;
  const std::string name = variable.substr(0, variable.find('=') + 1);
  for (char** one = environ; *one != nullptr; ++one) {
    if (name.empty() || !std::string_view(*one).starts_with(name)) variables.push_back(*one);
  }
  if (!variable.empty()) variables.push_back(const_cast<char*>(variable.c_str()));
  variables.push_back(nullptr);
  std::vector<char*> args;
  for (const std::string& word : argv) args.push_back(const_cast<char*>(word.c_str()));
  args.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&attributes);
  for (int i = 0; i < 3; ++i) ::posix_spawn_file_actions_adddup2(&files, streams[static_cast<std::size_t>(i)], i);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  int flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
  if (own_group) flags |= POSIX_SPAWN_SETPGROUP;
  ::posix_spawnattr_setflags(&attributes, static_cast<short>(flags));
  pid_t pid = -1;
  const std::lock_guard lock(mutex);  // reap() may be called for it at once
  const int error = ::posix_spawnp(&pid, args[0], &files, &attributes, args.data(), variables.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error != 0) {
    return fail_errno(error == ENOENT ? Errc::not_found : Errc::unavailable, concat("cannot start ", argv[0]), error);
  }
  running_children[pid];
  replace_in_mirror(0, pid);
  return pid;
}

std::optional<int> unregister(pid_t pid) {
  const std::lock_guard lock(mutex);
  replace_in_mirror(pid, 0);
  return running_children.extract(pid).mapped();
}

int open_pidfd(pid_t pid) {
  const bool wanted = ::getenv("DDRUN_NO_PIDFD") == nullptr;
  return wanted ? static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)) : -1;
}

void mirror_running(std::span<std::atomic<pid_t>> slots) { mirror = slots; }

std::vector<pid_t> running_helpers() {
  const std::lock_guard lock(mutex);
  std::vector<pid_t> pids;
  for (const auto& [pid, status] : running_children) pids.push_back(pid);
  pids.insert(pids.end(), other_children.begin(), other_children.end());
  return pids;
}

void register_child(pid_t pid) {
  const std::lock_guard lock(mutex);
  if (other_children.insert(pid).second) replace_in_mirror(0, pid);
}

std::vector<pid_t> registered_children() {
  const std::lock_guard lock(mutex);
  return {other_children.begin(), other_children.end()};
}

void unregister_child(pid_t pid) {
  const std::lock_guard lock(mutex);
  if (other_children.erase(pid) != 0) replace_in_mirror(pid, 0);
}

bool reap(pid_t pid) {
  const std::lock_guard lock(mutex);
  int status = 0;
  if (other_children.erase(pid) != 0) {
    replace_in_mirror(pid, 0);
    return ::waitpid(pid, &status, WNOHANG) == pid;
  }
  const auto found = running_children.find(pid);
  if (found == running_children.end()) return false;
  if (::waitpid(pid, &status, WNOHANG) == pid) found->second = status;
  return true;
}

}  // namespace ddrun::helper
