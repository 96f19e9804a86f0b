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
  unsigned long long start_time = 0;  ///< in clock ticks since boot; tells it from a later process of the same number
};

/// All that descend from `root` now, `root` itself left out, parents before their children; and without those in
/// `excluded` and what descends from them. Reads /proc once; a process that is born meanwhile may be missing, so a
/// caller that kills has to look again. Zombies are included.
[[nodiscard]] std::vector<ProcessInfo> descendants(pid_t root, const std::vector<pid_t>& excluded = {});

/// This process's workers and all that they have left: its descendants without its helpers (ddrun/helper/run.hpp) and
/// what descends from those. Otherwise as descendants().
[[nodiscard]] std::vector<ProcessInfo> workers_and_their_descendants();

/// Sends a signal to one of this process's descendants, as they were found a moment ago. Where it is not a child, whose
/// number stays its own until we have waited for it, it is held by a pidfd and looked at again: its parent may have
/// waited for it, and the number be another's by now. False if it is gone.
bool signal_descendant(const ProcessInfo& info, int signal);

/// SIGKILLs all workers_and_their_descendants() once, and reaps none. True if there was one to kill: one that was born
/// meanwhile is found by the next call. For any thread, while the one that waits for them cannot.
bool kill_workers_without_reaping();

/// True if no process is there that could continue this process's group once it has been stopped: no member has a
/// parent in another group of the session. The kernel then lets SIGTSTP stop none. True as well where /proc does not
/// tell.
[[nodiscard]] bool own_group_is_orphaned();

/// Workers' processes whose stdin is `terminal` and of which a thread waits in read() or select() for input from it,
/// also while it is stopped. None where the kernel does not show system calls.
[[nodiscard]] std::vector<ProcessInfo> readers_of_terminal(dev_t terminal);

/// True while this process has any child, dead or alive.
[[nodiscard]] bool has_children();

/// The program's name as the kernel keeps it (15 characters), empty if the process is gone.
[[nodiscard]] std::string process_name(pid_t pid);

/// SIGKILLs everything that descends from this process and reaps it, again and again until no child is left. Needs
/// this process to be a child subreaper, else grandchildren slip away. Blocks, at most until `give_up`; what is left
/// then cannot be killed (uninterruptible in the kernel). Gives back how many are left;
/// nothing if that cannot be known because /proc cannot be read.
/// Only for a process whose children are all to die, without any other wait going on. `excluded`, a child, and what
/// descends from it are left alone; 0: none is.
std::optional<std::size_t> kill_all_descendants(std::chrono::steady_clock::time_point give_up, pid_t excluded = 0);

}  // namespace ddrun::process
