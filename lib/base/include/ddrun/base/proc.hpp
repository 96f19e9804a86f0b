#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddrun {

/// A file of /proc or /sys, trailing blanks taken off; nothing if it cannot be read. At most `limit` bytes.
[[nodiscard]] std::optional<std::string> read_small_file(const std::string& path, std::size_t limit = 1U << 16U);

/// The number in a file that holds one; nothing if it is missing, "max", or no number.
[[nodiscard]] std::optional<std::int64_t> read_number(const std::string& path);

/// The number after `key` in a file of lines "key number", such as memory.events or /proc/vmstat.
[[nodiscard]] std::optional<std::int64_t> read_keyed_number(const std::string& path, std::string_view key);

/// In bytes.
struct ShmSpace {
  std::uint64_t size = 0;
  std::uint64_t used = 0;
};

/// Of /dev/shm; nothing where that is no tmpfs or has no limit. Does not block.
[[nodiscard]] std::optional<ShmSpace> shm_space();

// What /proc says of processes.

/// From /proc/PID/stat, see proc(5).
struct ProcessStat {
  char state = '?';  ///< 'R', 'S', 'T', 'Z'…
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  pid_t foreground = 0;          ///< the group that its terminal belongs to now; -1: it has no terminal
  std::uint64_t start_time = 0;  ///< clock ticks since the machine's start: no two processes have both this and the id
};

/// Nothing if there is no such process, or /proc cannot be read.
[[nodiscard]] std::optional<ProcessStat> read_process_stat(pid_t pid);

/// The file that this process runs; empty if it cannot be found out.
[[nodiscard]] std::string own_program();

}  // namespace ddrun
