#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace ddrun::process {

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  pid_t group = 0;
  char state = '?';  ///< as in /proc/PID/stat: R S D T t Z …
};

/// All that descend from `root` now, `root` itself left out, parents before their children. Reads /proc once; a process
/// that is born meanwhile may be missing, so whoever kills has to look again. Zombies are included.
[[nodiscard]] std::vector<ProcessInfo> descendants(pid_t root);

/// True while this process has any child, dead or alive.
[[nodiscard]] bool any_child_left();

/// The program's name as the kernel keeps it (15 characters), empty if the process is gone.
[[nodiscard]] std::string process_name(pid_t pid);

/// SIGKILLs everything that descends from this process and reaps it, again and again until no child is left. Needs
/// this process to be a child subreaper, else grandchildren slip away. Blocks, at most until `give_up`; what is left
/// then cannot be killed (uninterruptible in the kernel). Gives back how many are left.
/// Only for a process whose children are all to die, without any other wait going on.
std::size_t kill_all_descendants(std::chrono::steady_clock::time_point give_up);

}  // namespace ddrun::process
