#pragma once

#include <cstddef>
#include <string>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::process {

struct SharedState;

/// A cgroup (version 2) of the job's own, where we may make one: the workers are born in it and so is everything below
/// them. It lets a job be ended with one write, which not even a process that forks faster than one can kill escapes.
/// Guard, sweeper and agent are not in it. Where there is none every function here does nothing.
///
/// "May" is: the cgroup we are in is writable and was given to us (we are not root, or it is marked as delegated, or it
/// is the root of what a container sees). Taking a part of a tree that systemd keeps would be against its rules.
/// Source: "Control Group v2" of the kernel's documentation (cgroup.kill, delegation); systemd's CGROUP_DELEGATION.
class JobCgroup {
 public:
  JobCgroup() = default;
  /// One that is there; an empty path for none.
  explicit JobCgroup(std::string path) : path_(std::move(path)) {}
  /// Its path is left in `path` (empty if there is none), already when it is being made: a process that outlives a
  /// sweeper that is killed meanwhile can remove it. None is made where its path does not fit in `size` bytes.
  static JobCgroup create_if_delegated(char* path, std::size_t size);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Its directory, for being born there (CLONE_INTO_CGROUP); empty if there is none.
  [[nodiscard]] UniqueFd open_directory() const;
  /// SIGKILL to everything in it, at once. No process should be born in it afterwards without a renew(): Linux 6.18
  /// kills what is cloned from outside into a cgroup that has been killed (it compares `kill_seq` of two different
  /// cgroups).
  void kill();
  /// Once it is empty: if it has been killed, replaces it by a new one of the same name. Where that fails there is none
  /// any more.
  void renew();
  /// Removes it if it is empty. True if there is none any more.
  bool remove();
  /// The same for the last process that can: tries again while it is busy, for a fifth of a second at most. Linux
  /// 6.18 counts a process as there until its last turn on a CPU, which may come after its parent has waited for it.
  bool remove_with_retry();

 private:
  std::string path_;
  bool killed_ = false;
};

/// For the sweeper: makes the job's cgroup and tells the agent.
JobCgroup create_job_cgroup(SharedState& shared);
/// For the agent: the job's cgroup once the sweeper has made it, or decided that there is none. Blocks until then, for
/// a second at most (the sweeper may have been stopped); then there is none.
[[nodiscard]] JobCgroup await_job_cgroup(SharedState& shared);

}  // namespace ddrun::process
