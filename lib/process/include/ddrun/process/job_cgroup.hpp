#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::process {

struct SharedState;
class JobCgroup;
[[nodiscard]] JobCgroup await_job_cgroup(SharedState& shared);

/// The job's cgroup (version 2), where ddrun may make one: workers are cloned into it, so that all their descendants
/// are in it. One write to cgroup.kill kills them all, even a fork bomb. Guard, sweeper and agent are not in it.
/// Without a cgroup every function does nothing. Nothing blocks but where stated.
///
/// ddrun may make one if its own cgroup is writable and delegated: ddrun is not root, or the cgroup is marked as
/// delegated, or it is the root of a container's view. systemd forbids others to change the rest of its tree. Source:
/// "Control Group v2" of the kernel's documentation (cgroup.kill, delegation); systemd's CGROUP_DELEGATION.
class JobCgroup {
 public:
  JobCgroup() = default;
  /// An existing one; an empty path for none.
  explicit JobCgroup(std::string path) : path_(std::move(path)) {}
  /// Writes its path to `path` (empty if there is none) before it is made, so that guard or agent can remove it if the
  /// sweeper is killed meanwhile. None is made where its path does not fit in `size` bytes.
  static JobCgroup create_if_delegated(char* path, std::size_t size);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// Its directory, for CLONE_INTO_CGROUP; empty if there is none.
  [[nodiscard]] UniqueFd open_directory() const;
  /// Sends SIGKILL to all its processes. No process should be cloned into it afterwards without a renew(): Linux 6.18
  /// kills a process cloned from outside into a killed cgroup (it compares `kill_seq` of two different cgroups).
  void kill();
  /// Once it is empty: if it has been killed, also by the sweeper, replaces it by a new one of the same name. If that
  /// fails there is none.
  void renew();
  /// Removes it if it is empty. True if there is none any more.
  bool remove();
  /// The same, but retries while it is busy; blocks for 0.2 s at most. Linux 6.18 counts a process as a member until
  /// its last turn on a CPU, which may come after its parent has waited for it.
  bool remove_with_retry();

 private:
  std::string path_;
  bool killed_ = false;
  const std::atomic<std::uint32_t>* sweeper_kills_ = nullptr;  ///< of the agent's: OverdueWorkers::Page::kills
  std::uint32_t seen_kills_ = 0;

  friend JobCgroup await_job_cgroup(SharedState& shared);
};

/// Called by the sweeper: makes the job's cgroup, if possible, and wakes the agent.
JobCgroup create_job_cgroup(SharedState& shared);
/// Called by the agent: the job's cgroup. Blocks until the sweeper has made it or has found that there is none, for a
/// second at most (the sweeper may have been stopped); after that there is none.
[[nodiscard]] JobCgroup await_job_cgroup(SharedState& shared);

}  // namespace ddrun::process
