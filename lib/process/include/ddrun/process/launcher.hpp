#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::process {

/// Everything a new process is made from. All pointers are borrowed and must live, unchanged, until the launcher has
/// confirmed the start; nothing behind them is copied, so a caller that starts thousands prepares the common parts
/// once.
struct SpawnPlan {
  const char* program = nullptr;       ///< path, not searched for
  char* const* argv = nullptr;         ///< null-terminated
  char* const* environment = nullptr;  ///< null-terminated "NAME=VALUE"
  const char* directory = nullptr;     ///< working directory; null: ours
  /// Descriptors for 0, 1 and 2; -1: ours. Every other descriptor is closed in the child.
  int standard_in = -1;
  int standard_out = -1;
  int standard_err = -1;
  /// 1 or 2: that standard stream, a terminal that controls no session yet, becomes the controlling terminal, so that
  /// /dev/tty can be opened. -1: none. None of its processes is in the terminal's foreground, and so: the process's end
  /// is no SIGHUP for what it has started; reading from /dev/tty fails at once with EIO instead of waiting for somebody
  /// to type; and no key and no new size of the terminal is a signal. Where a sandbox forbids it there is none.
  int controlling_terminal = -1;
  const unsigned long* cpu_mask = nullptr;  ///< as for sched_setaffinity; null: ours
  std::size_t cpu_mask_bytes = 0;
  bool want_pidfd = true;  ///< false spares a descriptor; its end is then learned from SIGCHLD
};

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
