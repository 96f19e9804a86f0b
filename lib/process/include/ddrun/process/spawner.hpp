#pragma once

#include <sys/types.h>

#include <cstddef>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::process {

/// How long a start may block the event loop that waits for it: longer than an exec takes on a busy machine.
inline constexpr Milliseconds first_exec_wait{200};

/// Everything that a new process is made from. All pointers are borrowed and must stay valid and unchanged until the
/// start is confirmed; nothing is copied, so a caller that starts thousands prepares the common parts once.
struct SpawnPlan {
  const char* program = nullptr;       ///< path, not searched for
  char* const* argv = nullptr;         ///< null-terminated
  char* const* environment = nullptr;  ///< null-terminated "NAME=VALUE"
  const char* directory = nullptr;     ///< working directory; null: the caller's
  /// Descriptors for 0, 1 and 2; -1: the caller's. Every other descriptor is closed in the child.
  int standard_in = -1;
  int standard_out = -1;
  int standard_err = -1;
  /// 0, 1 or 2: that standard stream, a terminal that controls no session yet, becomes the controlling terminal, so
  /// that /dev/tty can be opened. -1, or where a sandbox forbids it: none. With 0 the child's group is in its
  /// foreground. Else the foreground group is empty, so that its processes get no SIGHUP when the child ends, no
  /// SIGWINCH and no signals of keys, and a read from /dev/tty fails with EIO instead of waiting for input.
  int controlling_terminal = -1;
  const unsigned long* cpu_mask = nullptr;  ///< as for sched_setaffinity; null: the caller's
  std::size_t cpu_mask_bytes = 0;
  bool want_pidfd = true;  ///< false saves a descriptor; the exit is then reported by SIGCHLD
};

/// A started process. `pidfd` is empty where the kernel or a sandbox has none, or none was wanted.
struct Spawned {
  pid_t pid = 0;
  UniqueFd pidfd;
};

/// Starts workers, several at a time. The interface does not say which process becomes their parent.
class Spawner {
 public:
  /// How many starts can be unconfirmed at the same time.
  static constexpr int slots = 8;

  virtual ~Spawner() = default;

  /// Begins a start in a free slot; does not wait for exec. Returns the child, which the caller reaps, also if its
  /// start fails later. The descriptors of `plan` may be closed afterwards, its pointers must stay valid until the slot
  /// is confirmed or the child has been reaped. Fails with `unavailable` if no process can be made; the slot stays
  /// free.
  virtual Result<Spawned> begin(int slot, const SpawnPlan& plan) = 0;
  /// Waits, `limit` at most, until the slot's child has executed its program, failed to, or ended; the slot is free
  /// then. False: not yet. Where the first child does not start, another may be started instead: `child` is set to it,
  /// and the caller unwatches the first before. Errors name the step that failed (`not_found` or `not_executable` for
  /// exec, else `unavailable`).
  virtual Result<bool> confirm(int slot, Milliseconds limit, Spawned& child) = 0;
  /// Kills a child that has not been confirmed. The slot is free once that has been reaped.
  virtual void abandon(int slot) = 0;
  /// Before all processes in the workers' cgroup are killed: those that wait in it for a start are no helpers any more.
  virtual void release_standby() {}

  /// Whether started processes come with a pidfd, if one is wanted.
  [[nodiscard]] virtual bool has_pidfd() const = 0;
};

}  // namespace ddrun::process
