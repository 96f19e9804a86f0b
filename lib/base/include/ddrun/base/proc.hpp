#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace ddrun {

// What /proc says of processes.

/// From /proc/PID/stat, see proc(5).
struct ProcessStat {
  char state = '?';  ///< 'R', 'S', 'T', 'Z'…
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  std::uint64_t born = 0;  ///< clock ticks since the machine's start: no two processes have both this and the id
};

/// Nothing if there is no such process, or /proc cannot be read.
[[nodiscard]] std::optional<ProcessStat> read_process_stat(pid_t pid);

/// The file that this process runs; empty if it cannot be found out.
[[nodiscard]] std::string own_program();

}  // namespace ddrun
