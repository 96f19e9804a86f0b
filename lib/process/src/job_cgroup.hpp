#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace ddrun::process {

/// A cgroup (version 2) of the job's own, where we may make one: the agent is born in it and so is everything below it.
/// It lets the sweeper end a job with one write, which not even a process that forks faster than one can kill escapes.
/// Where there is none every function here does nothing, and fork_into() is a plain fork.
///
/// "May" is: the cgroup we are in is writable and was given to us (we are not root, or it is marked as delegated, or it
/// is the root of what a container sees). Taking a part of a tree that systemd keeps would be against its rules.
/// Source: "Control Group v2" of the kernel's documentation (cgroup.kill, delegation); systemd's CGROUP_DELEGATION.
class JobCgroup {
 public:
  JobCgroup() = default;
  /// Its path is left in `path` (empty if there is none).
  static JobCgroup create_if_delegated(char* path, std::size_t size);
  /// fork(); the child is in the cgroup from its first instruction. -1 and errno as fork.
  pid_t fork_into();
  /// SIGKILL to everything in it, at once.
  void kill();
  /// Removes it if it is empty.
  void remove();
  /// The child's copy: it has no business with the directory.
  void forget();
  static void kill(const char* path);

 private:
  std::string path_;
};

}  // namespace ddrun::process
