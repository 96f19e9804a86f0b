#include "job_cgroup.hpp"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <utility>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::process {

namespace {

std::string read_small(const char* path) {
  UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  ssize_t n;
  while (fd && (n = ::read(fd.get(), buffer, sizeof buffer)) > 0) text.append(buffer, static_cast<std::size_t>(n));
  return text;
}

bool is_cgroup2(const char* path) {
  struct statfs info {};
  return ::statfs(path, &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC;
}

/// Where cgroup2 is mounted, empty if nowhere. ("… - cgroup2 source options", the mount point is the fifth field.)
std::string mount_point() {
  // Where it is nearly always; the whole list of mounts can be long.
  for (const char* usual : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    if (is_cgroup2(usual)) return usual;
  }
  const std::string mounts = read_small("/proc/self/mountinfo");
  const std::size_t type = mounts.find(" - cgroup2 ");
  if (type == std::string::npos) return {};
  std::size_t at = mounts.rfind('\n', type);
  at = at == std::string::npos ? 0 : at + 1;
  for (int field = 0; field < 4; ++field) at = mounts.find(' ', at) + 1;
  return mounts.substr(at, mounts.find(' ', at) - at);
}

/// Our own path within it, from the line "0::/…".
std::string own_path() {
  const std::string groups = read_small("/proc/self/cgroup");
  std::size_t at = groups.rfind("0::", 0) == 0 ? 0 : groups.find("\n0::");
  if (at == std::string::npos) return {};
  at = groups.find("0::", at) + 3;
  return groups.substr(at, groups.find('\n', at) - at);
}

bool marked_delegated(const std::string& directory) {
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

}  // namespace

JobCgroup JobCgroup::create_if_delegated(char* path, std::size_t size) {
  JobCgroup group;
  path[0] = '\0';
#if defined(__SANITIZE_THREAD__)
  return group;  // its runtime must see every fork
#endif
  if (::getenv("DDRUN_NO_CGROUP") != nullptr) return group;
  const std::string own = own_path();
  if (own.empty()) return group;
  const std::string mount = mount_point();
  if (mount.empty()) return group;
  const std::string directory = own == "/" ? mount : mount + own;
  if (::access(directory.c_str(), W_OK) != 0 || ::access((directory + "/cgroup.procs").c_str(), W_OK) != 0)
    return group;
  if (::geteuid() == 0 && own != "/" && !marked_delegated(directory)) return group;
  const std::string wanted = directory + "/ddrun-" + std::to_string(::getpid());
  if (wanted.size() >= size || ::mkdir(wanted.c_str(), 0755) != 0) return group;
  group.path_ = wanted;
  ::memcpy(path, wanted.c_str(), wanted.size() + 1);
  return group;
}

pid_t JobCgroup::fork_into() {
  if (!path_.empty()) {
    // Being born there costs nothing; moving there later makes the kernel wait for every CPU.
    UniqueFd directory(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory) {
      clone_args args{};
      args.flags = CLONE_INTO_CGROUP;
      args.exit_signal = SIGCHLD;
      args.cgroup = static_cast<__u64>(directory.get());
      // Behind glibc's back, which is right only while there is one thread, as here.
      const long pid = ::syscall(SYS_clone3, &args, sizeof args);
      if (pid >= 0) return static_cast<pid_t>(pid);
    }
    remove();
  }
  return ::fork();
}

void JobCgroup::kill() {
  if (!path_.empty()) kill(path_.c_str());
}

void JobCgroup::remove() {
  if (!path_.empty() && ::rmdir(path_.c_str()) == 0) path_.clear();
}

void JobCgroup::forget() { path_.clear(); }

void JobCgroup::kill(const char* path) { write_to(std::string(path) + "/cgroup.kill", "1"); }

}  // namespace ddrun::process
