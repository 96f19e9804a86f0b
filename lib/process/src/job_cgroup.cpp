#include "ddrun/process/job_cgroup.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "clone_child.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/process/guard.hpp"

namespace ddrun::process {

namespace {

bool is_cgroup2(const char* path) {
  struct statfs info {};
  return ::statfs(path, &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC;
}

/// Where cgroup2 is mounted, empty if nowhere. In mountinfo, "… - cgroup2 source options", it is the fifth field.
std::string cgroup2_mount_point() {
  // The usual places first: the list of mounts can be long.
  for (const char* usual : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    if (is_cgroup2(usual)) return usual;
  }
  const std::string mounts = read_small_file("/proc/self/mountinfo", 1U << 22U).value_or("");
  const std::size_t type = mounts.find(" - cgroup2 ");
  if (type == std::string::npos) return {};
  std::size_t at = mounts.rfind('\n', type);
  at = at == std::string::npos ? 0 : at + 1;
  for (int field = 0; field < 4; ++field) at = mounts.find(' ', at) + 1;
  return mounts.substr(at, mounts.find(' ', at) - at);
}

/// This process's path within it, from the line "0::/…" of /proc/self/cgroup.
std::string own_cgroup_path() {
  const std::string groups = read_small_file("/proc/self/cgroup").value_or("");
  std::size_t at = groups.rfind("0::", 0) == 0 ? 0 : groups.find("\n0::");
  if (at == std::string::npos) return {};
  at = groups.find("0::", at) + 3;
  return groups.substr(at, groups.find('\n', at) - at);
}

/// Of this process's cgroup; empty if it has none.
std::string own_directory() {
  const std::string own = own_cgroup_path();
  const std::string mount = own.empty() ? "" : cgroup2_mount_point();
  if (mount.empty()) return {};
  return own == "/" ? mount : mount + own;
}

bool is_marked_delegated(const std::string& directory) {
  for (const char* name : {"user.delegate", "trusted.delegate"}) {
    char value[2] = {};
    if (::getxattr(directory.c_str(), name, value, sizeof value) > 0 && value[0] == '1') return true;
  }
  return false;
}

bool write_to(const std::string& path, const char* text) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return fd && write_all(fd.get(), text, ::strlen(text));
}

__attribute__((no_sanitize("address", "thread", "undefined"))) int exit_child(void*) {
  while (true) raw_syscall(SYS_exit_group, 0);
}

/// False where the kernel cannot clone into a cgroup, and where it kills the child because the parent's cgroup has been
/// killed before (see JobCgroup::kill).
bool can_clone_into(const JobCgroup& group) {
  const UniqueFd directory = group.open_directory();
  if (!directory) return false;
  alignas(16) char stack[4096];
  ChildClone child;
  child.flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
  child.stack = stack;
  child.stack_bytes = sizeof stack;
  child.cgroup = directory.get();
  const long pid = clone_child(child, exit_child, nullptr);
  if (pid < 0) return false;
  int status = -1;
  while (::waitpid(static_cast<pid_t>(pid), &status, 0) < 0 && errno == EINTR) {
  }
  return status == 0;
}

}  // namespace

JobCgroup JobCgroup::create_if_delegated(char* path, std::size_t size) {
  JobCgroup group;
  path[0] = '\0';
  if (::getenv("DDRUN_NO_CGROUP") != nullptr) return group;
  const std::string directory = own_directory();
  if (::access(directory.c_str(), W_OK) != 0 || ::access((directory + "/cgroup.procs").c_str(), W_OK) != 0)
    return group;
  if (::geteuid() == 0 && own_cgroup_path() != "/" && !is_marked_delegated(directory)) return group;
  const std::string wanted = directory + "/ddrun-" + std::to_string(::getpid());
  if (wanted.size() >= size) return group;
  ::memcpy(path, wanted.c_str(), wanted.size() + 1);
  if (::mkdir(wanted.c_str(), 0755) != 0) {
    path[0] = '\0';
    return group;
  }
  group.path_ = wanted;
  if (!can_clone_into(group)) group.remove();
  return group;
}

UniqueFd JobCgroup::open_directory() const {
  return path_.empty() ? UniqueFd() : UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

void JobCgroup::kill() {
  if (path_.empty()) return;
  write_to(path_ + "/cgroup.kill", "1");
  killed_ = true;
}

void JobCgroup::renew() {
  if (path_.empty()) return;
  if (sweeper_kills_ != nullptr) {
    const std::uint32_t kills = *sweeper_kills_;
    killed_ = killed_ || std::exchange(seen_kills_, kills) != kills;
  }
  // Another program may have removed it while it was empty.
  if (std::exchange(killed_, false) && ::rmdir(path_.c_str()) != 0 && errno != ENOENT) return path_.clear();
  if (::mkdir(path_.c_str(), 0755) != 0 && errno != EEXIST) path_.clear();
}

bool JobCgroup::remove() {
  if (!path_.empty() && (::rmdir(path_.c_str()) == 0 || errno == ENOENT)) path_.clear();
  return path_.empty();
}

bool JobCgroup::remove_with_retry() {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (!remove()) {
    if (errno != EBUSY || std::chrono::steady_clock::now() >= give_up) return false;
    const timespec pause{0, 1'000'000};
    ::nanosleep(&pause, nullptr);
  }
  return true;
}

JobCgroup create_job_cgroup(SharedState& shared) {
  JobCgroup group = JobCgroup::create_if_delegated(shared.cgroup, sizeof shared.cgroup);
  shared.cgroup_decided = 1;
  ::syscall(SYS_futex, &shared.cgroup_decided, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  return group;
}

JobCgroup await_job_cgroup(SharedState& shared) {
  static_assert(sizeof shared.cgroup_decided == sizeof(int) && std::atomic<int>::is_always_lock_free);
  const timespec timeout{1, 0};
  // One wait is enough: a spurious wake-up only means a job without a cgroup.
  if (shared.cgroup_decided == 0) {
    ::syscall(SYS_futex, &shared.cgroup_decided, FUTEX_WAIT, 0, &timeout, nullptr, 0);
  }
  JobCgroup group = shared.cgroup_decided == 0 ? JobCgroup() : JobCgroup(shared.cgroup);
  group.sweeper_kills_ = &shared.overdue.kills;
  return group;
}

}  // namespace ddrun::process
