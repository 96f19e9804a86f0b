#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/inspect/stack_page.hpp"
#include "python_frames.hpp"
#include "system_call.hpp"
#include "unwinder.hpp"

namespace ddrun::inspect {

/// What needs no memory of the process and so never blocks: the main thread's state and system call, and the program.
/// A worker that waits for a child, as a shell or a launcher does, is replaced by that child: by the last one that
/// Python runs in, if any does.
[[nodiscard]] RankStacks read_facts(int rank, pid_t pid, TcpTables& tables);

/// The TCP sockets of the rank's processes. `store_ports`: of the job's worker stores. Reads links and tables in /proc.
void read_connections(RankStacks& rank, const std::set<int>& store_ports, TcpTables& tables);

/// What stays true of a process while it maps no memory: reading it costs more than all else.
struct ProcessCache {
  std::string key;  ///< start time and size of its memory
  std::vector<Mapping> mappings;
  std::optional<PythonReader> python;
};

struct ReadLimits {
  bool all_threads = false;  ///< else the main one, and if that waits for a thread 16 that do too
  std::size_t bytes = 0;     ///< of frames of Python, and of native ones; those of the main thread come first
  Deadline deadline{};       ///< beyond it no further thread is read or unwound
};

/// Completes what read_facts() returned with threads and their frames, and with the children that the main thread waits
/// for by a pipe; native functions have no names yet. Stops and signals nothing, and needs the right to trace the
/// process, but not ptrace(2). Blocks while a page of the process is read from a disk.
void read_stacks(RankStacks& stacks, ProcessCache& cache, TcpTables& tables, const ReadLimits& limits);

/// CPU time of all threads of the process that was read; 0 if it is gone. The kernel adds what runs at its ticks, each
/// 1 to 10 ms.
[[nodiscard]] std::chrono::nanoseconds cpu_time(const RankStacks& stacks);

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
