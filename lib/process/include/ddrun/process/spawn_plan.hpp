#pragma once

#include <signal.h>
#include <sys/types.h>

#include <cstddef>

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

}  // namespace ddrun::process
