#pragma once

#include <sys/types.h>

#include <cstddef>

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
  /// is no SIGHUP for what it has started; reading from /dev/tty fails at once with EIO instead of waiting for a user
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

/// Starts workers, several at a time, and knows whether anything is left of them: whose children they are is its own
/// affair.
class Spawner {
 public:
  /// How many starts can be unconfirmed at once.
  static constexpr int slots = 8;

  virtual ~Spawner() = default;

  /// Begins a start in a slot that is free. The descriptors of `plan` may be closed afterwards; what it points to must
  /// stay until confirm(). Fails with `unavailable` if not even a process can be made; then the slot is free.
  virtual Result<void> begin(int slot, const SpawnPlan& plan) = 0;
  /// Waits until the program of this slot is being executed, or has failed to be; the slot is free then. Errors name
  /// the step that failed (`not_found`, `not_executable` for exec, else `unavailable`); that child has been reaped.
  /// Until this has returned, no other code may reap the child.
  virtual Result<Spawned> confirm(int slot) = 0;

  /// Whether what it starts comes with a pidfd, if one is wanted.
  [[nodiscard]] virtual bool has_pidfd() const = 0;
  /// True while anything that it has started, or that descends from that, is there, dead or alive.
  [[nodiscard]] virtual bool has_processes() const = 0;
};

}  // namespace ddrun::process
