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

/// Starts processes: each leads a session and process group of its own, has an empty signal mask, default
/// dispositions, exactly the descriptors 0, 1 and 2, and is killed by the kernel when the thread that started it ends.
///
/// Several can be on their way at once, each in a slot of its own: on a busy machine a new session waits for its turn
/// (the scheduler gives each a group, see autogroup in sched(7)), and on an idle one the next is prepared on one CPU
/// while the last executes on another.
///
/// One per program, made before any thread is started, used from one thread that lives as long as the workers
/// (the parent-death signal is tied to the thread).
class Launcher final : public Spawner {
 public:
  /// Parks a few low descriptors, allocates the children's stacks and asks the kernel once what it can do.
  /// With `allow_pidfd` false no pidfd is ever asked for (also switched off by DDRUN_NO_PIDFD=1, for tests).
  static Result<Launcher> create(bool allow_pidfd = true);
  Launcher(Launcher&&) noexcept;
  Launcher& operator=(Launcher&&) = delete;
  ~Launcher() override;

  /// Children get this RLIMIT_NOFILE instead of ours.
  void set_child_descriptor_limit(const rlimit& limit) { child_descriptor_limit_ = limit; }

  /// Children are born in this cgroup (its directory); empty: in ours. Where the kernel refuses, they are born in ours.
  void set_child_cgroup(UniqueFd directory) { cgroup_ = std::move(directory); }

  Result<void> begin(int slot, const SpawnPlan& plan) override;
  Result<Spawned> confirm(int slot) override;
  /// Both, one after the other.
  Result<Spawned> spawn(const SpawnPlan& plan);

  [[nodiscard]] bool has_pidfd() const override { return has_pidfd_; }
  /// While this process, which adopts what its children leave, has any child.
  [[nodiscard]] bool has_processes() const override;

 private:
  struct Slot;
  Launcher();
  void release_fds(int slot);

  long clone_into(Slot& slot, int flags);

  UniqueFd null_;
  UniqueFd cgroup_;
  std::vector<std::unique_ptr<Slot>> slots_;
  unsigned first_unused_ = 0;
  bool has_close_range_ = false;
  bool has_pidfd_ = false;
  char* stacks_ = nullptr;
  std::vector<int> reset_signals_;
  std::optional<rlimit> child_descriptor_limit_;
};

}  // namespace ddrun::process
