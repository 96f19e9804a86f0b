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
  const unsigned long* cpu_mask = nullptr;  ///< as for sched_setaffinity; null: ours
  std::size_t cpu_mask_bytes = 0;
  bool want_pidfd = true;  ///< false spares a descriptor; its end is then learned from SIGCHLD
};

}  // namespace ddrun::process
