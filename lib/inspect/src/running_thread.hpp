#pragma once

#include <sys/types.h>

#include <cstddef>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "unwinder.hpp"

namespace ddrun::inspect {

/// Registers and the upper end of the stack of a thread that computed at one moment.
struct ThreadSample {
  Registers registers;
  std::vector<std::byte> stack;  ///< from its stack pointer on
};

/// Waits until the kernel's software clock finds the thread in user mode (perf_event_open(2)), which neither stops nor
/// signals it. Blocks until `deadline` at most. Fails with `unavailable` where the kernel does not allow it
/// (perf_event_paranoid above 2, seccomp) and with `timeout`.
[[nodiscard]] Result<ThreadSample> sample_running_thread(pid_t thread, Deadline deadline);

}  // namespace ddrun::inspect
