#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace ddrun::process {

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';  ///< as in /proc/PID/stat: R S D T t Z …
  pid_t session = 0;
  unsigned long long start_time = 0;  ///< in clock ticks since boot; with `pid` it identifies a process
};

// All may be called from any thread, and none blocks but where stated.

/// All descendants of `root` without `root`, parents before their children, zombies included; `excluded` ones and their
/// descendants are left out. Reads /proc once, only of these processes unless the kernel does not list children: one
/// that is forked or adopted meanwhile may be missing, so a caller that kills has to call it again. Empty if /proc
/// cannot be read.
[[nodiscard]] std::vector<ProcessInfo> descendants(pid_t root, const std::vector<pid_t>& excluded = {});

/// descendants() of this process without its helpers (ddrun/helper/run.hpp).
[[nodiscard]] std::vector<ProcessInfo> workers_and_their_descendants();

/// True while this process has any child other than a helper. In a subreaper, which adopts orphans: while there is any
/// such descendant.
[[nodiscard]] bool has_workers();

/// Sends a signal to a descendant of this process that was found a moment ago. The pid of a child is valid until it is
/// waited for. Any other process is held by a pidfd and its start time compared, as its pid may have been reused. False
/// if the process is gone.
bool signal_descendant(const ProcessInfo& info, int signal);

/// Sends SIGKILL to all workers_and_their_descendants() once. True if there was one. For use while the thread that
/// reaps them is blocked.
bool kill_workers_without_reaping();

/// True if this process's group is orphaned in the sense of POSIX: no member has a parent in another group of the
/// session, and the kernel discards SIGTSTP. True as well where /proc cannot be read.
[[nodiscard]] bool own_group_is_orphaned();

/// Workers' processes whose stdin is `terminal` and of which a thread waits in read() or select() for input from it,
/// also while it is stopped. None where the kernel does not show system calls.
[[nodiscard]] std::vector<ProcessInfo> readers_of_terminal(dev_t terminal);

/// True while this process has any child, zombies included.
[[nodiscard]] bool has_children();

/// True if `child` of this process has exited, whether or not it has been reaped.
[[nodiscard]] bool has_ended(pid_t child);

/// The program's name as the kernel keeps it (15 characters), empty if the process is gone.
[[nodiscard]] std::string process_name(pid_t pid);

/// Sends SIGKILL to all descendants of this process and reaps them, repeatedly until no child is left. This process
/// must be a child subreaper (else orphaned grandchildren are missed), all its children must be expendable, and no
/// other thread may wait for one. `excluded`, a child, and its descendants are spared; 0: none. Blocks until `give_up`
/// at most. Returns the number of processes that are left (state D in the kernel), nothing if /proc cannot be read.
std::optional<std::size_t> kill_all_descendants(std::chrono::steady_clock::time_point give_up, pid_t excluded = 0);

}  // namespace ddrun::process
