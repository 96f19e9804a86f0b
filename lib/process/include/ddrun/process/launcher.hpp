#pragma once

#include <sys/resource.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/spawner.hpp"

namespace ddrun::process {

/// Starts processes. Each leads a new session and process group, has an empty signal mask, default dispositions,
/// exactly the descriptors 0, 1 and 2, and is killed by the kernel when the thread that started it ends.
///
/// Up to `slots` starts overlap: on a busy machine a new session waits for the scheduler (see autogroup in sched(7)),
/// and on an idle one the next start is prepared on one CPU while the last executes on another.
///
/// One per program, made before any thread is started, used from one thread that lives as long as the workers (the
/// parent-death signal is tied to the thread).
class Launcher final : public Spawner {
 public:
  /// Reserves a few low descriptors, allocates the children's stacks and detects features of the kernel. Fails with
  /// `unavailable`. With `allow_pidfd` false no pidfd is requested (also switched off by DDRUN_NO_PIDFD=1, for tests).
  static Result<Launcher> create(bool allow_pidfd = true);
  Launcher(Launcher&&) noexcept;
  Launcher& operator=(Launcher&&) = delete;
  ~Launcher() override;

  /// RLIMIT_NOFILE of the children; default: this process's.
  void set_child_descriptor_limit(const rlimit& limit) { child_descriptor_limit_ = limit; }

  /// Directory of the children's cgroup; empty, or where the kernel refuses: that of this process.
  void set_child_cgroup(UniqueFd directory) { cgroup_ = std::move(directory); }

  Result<Spawned> begin(int slot, const SpawnPlan& plan) override;
  Result<bool> confirm(int slot, Milliseconds limit, Spawned& child) override;
  void abandon(int slot) override;
  /// Starts one process; blocks until it has executed its program, `limit` at most. Copies `plan`. If the program's
  /// file system does not answer in time, the child is returned all the same and exits with 127 if its start fails;
  /// until then another spawn() fails. Fails as begin() and confirm() do; a child that failed has been reaped.
  Result<Spawned> spawn(const SpawnPlan& plan, Milliseconds limit = first_exec_wait);

  [[nodiscard]] bool has_pidfd() const override { return has_pidfd_; }

 private:
  struct Slot;
  struct PlanCopy;
  Launcher();
  void release_fds(int slot);
  long clone_into(Slot& slot, int flags);
  /// Whether the slot's child has left the shared memory by exec or exit; waits for that, `limit` at most.
  bool has_left(Slot& slot, Milliseconds limit);

  UniqueFd null_;
  UniqueFd cgroup_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::unique_ptr<PlanCopy> spawn_plan_;
  unsigned first_unused_ = 0;
  bool has_close_range_ = false;
  bool has_pidfd_ = false;
  bool clears_at_exec_ = true;  ///< the kernel clears Slot::shares_memory; gVisor does not
  char* stacks_ = nullptr;
  std::vector<int> reset_signals_;
  std::optional<rlimit> child_descriptor_limit_;
};

}  // namespace ddrun::process
