#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/spawn_plan.hpp"

namespace ddrun::process {

/// A process that was just started. `pidfd` is empty where the kernel or a sandbox has none, or none was wanted.
struct Spawned {
  pid_t pid = 0;
  UniqueFd pidfd;
};

/// Starts processes: each leads a session and process group of its own, has an empty signal mask, default
/// dispositions, exactly the descriptors 0, 1 and 2, and is killed by the kernel when the thread that started it ends.
///
/// Several can be on their way at once, each in a lane of its own: on a busy machine a new session waits for its turn
/// (the scheduler gives each a group, see autogroup in sched(7)), and on an idle one the next is prepared on one CPU
/// while the last executes on another.
///
/// One per program, made before any thread is started, used from one thread that lives as long as the workers
/// (the parent-death signal is tied to the thread).
class Launcher {
 public:
  /// How many starts can be unconfirmed at once.
  static constexpr int lanes = 8;

  /// Parks a few low descriptors, allocates the children's stacks and asks the kernel once what it can do.
  /// With `allow_pidfd` false no pidfd is ever asked for (also switched off by DDRUN_NO_PIDFD=1, for tests).
  static Result<Launcher> create(bool allow_pidfd = true);
  Launcher(Launcher&&) noexcept;
  Launcher& operator=(Launcher&&) = delete;
  ~Launcher();

  /// Children get this RLIMIT_NOFILE instead of ours.
  void set_child_descriptor_limit(const rlimit& limit) { child_descriptor_limit_ = limit; }

  /// Children are born in this cgroup (its directory); empty: in ours. Where the kernel refuses, they are born in ours.
  void set_child_cgroup(UniqueFd directory) { cgroup_ = std::move(directory); }

  /// Begins a start in a lane that is free. The descriptors of `plan` may be closed afterwards; what it points to must
  /// stay until confirm(). Fails with `unavailable` if not even a process can be made; then the lane is free.
  Result<void> begin(int lane, const SpawnPlan& plan);
  /// Waits until the program of this lane is being executed, or has failed to be; the lane is free then. Errors name
  /// the step that failed (`not_found`, `not_executable` for exec, else `unavailable`); that child has been reaped.
  /// Until this has returned, nobody else may reap the child.
  Result<Spawned> confirm(int lane);

  /// Both, one after the other.
  Result<Spawned> spawn(const SpawnPlan& plan);

  [[nodiscard]] bool has_pidfd() const { return has_pidfd_; }

 private:
  struct Lane;
  Launcher();
  void unpark(int lane);

  long clone_into(Lane& lane, int flags);

  UniqueFd null_;
  UniqueFd cgroup_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  unsigned first_unused_ = 0;
  bool has_close_range_ = false;
  bool has_pidfd_ = false;
  char* stacks_ = nullptr;
  std::vector<int> reset_signals_;
  std::optional<rlimit> child_descriptor_limit_;
};

}  // namespace ddrun::process
