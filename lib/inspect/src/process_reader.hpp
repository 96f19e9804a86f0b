#pragma once

#include <sys/types.h>

#include <chrono>

#include "ddrun/base/duration.hpp"
#include "ddrun/inspect/stacks.hpp"

namespace ddrun::inspect {

/// What needs no memory of the process and so never blocks: the main thread's state and system call, and the program.
/// A worker that only waits for a child, as a shell or a launcher does, is replaced by that child.
[[nodiscard]] RankStacks read_facts(int rank, pid_t pid);

/// Completes what read_facts() returned with all threads and their frames; native functions have no names yet. Stops
/// and signals nothing, and needs the right to trace the process, but not ptrace(2). Blocks while a page of the process
/// is read from a disk. Beyond `deadline` no further thread is unwound.
void read_stacks(RankStacks& stacks, Deadline deadline);

/// CPU time of all threads of the process that was read; 0 if it is gone. The kernel adds what runs at its ticks, each
/// 1 to 10 ms.
[[nodiscard]] std::chrono::nanoseconds cpu_time(const RankStacks& stacks);

}  // namespace ddrun::inspect
