#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

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
/// One per program, made before any thread is started, used from one thread that lives as long as the workers
/// (the parent-death signal is tied to the thread). spawn() blocks until exec has succeeded or failed.
class Launcher {
 public:
  /// Parks three low descriptors, allocates the children's stack and asks the kernel once what it can do.
  /// With `allow_pidfd` false no pidfd is ever asked for (also switched off by DDRUN_NO_PIDFD=1, for tests).
  static Result<Launcher> create(bool allow_pidfd = true);
  Launcher(Launcher&&) noexcept;
  Launcher& operator=(Launcher&&) = delete;
  ~Launcher();

  /// Children get this RLIMIT_NOFILE instead of ours.
  void set_child_descriptor_limit(const rlimit& limit) { child_descriptor_limit_ = limit; }

  /// Errors name the step that failed (`not_found`, `not_executable` for exec, else `unavailable`); the failed
  /// child has been reaped by then.
  Result<Spawned> spawn(const SpawnPlan& plan);

  [[nodiscard]] bool has_pidfd() const { return has_pidfd_; }

 private:
  Launcher() = default;
  Result<void> park(int slot, int fd);

  UniqueFd null_;
  UniqueFd slots_[3];
  unsigned first_unused_ = 0;
  bool has_close_range_ = false;
  bool has_pidfd_ = false;
  char* stack_ = nullptr;
  std::vector<int> reset_signals_;
  std::optional<rlimit> child_descriptor_limit_;
};

}  // namespace ddrun::process
