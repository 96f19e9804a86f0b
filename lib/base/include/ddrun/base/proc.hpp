#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun {

/// Reads a file of /proc or /sys without trailing blanks, newlines and NULs; nullopt if it cannot be read. At most
/// `limit` bytes, rounded up to a read.
[[nodiscard]] std::optional<std::string> read_small_file(const std::string& path, std::size_t limit = 1U << 16U);

/// The names in a directory that do not begin with a dot; none if it cannot be read.
[[nodiscard]] std::vector<std::string> names_in(const std::string& directory);

/// The number in a file; nullopt if the file is missing or holds no number ("max").
[[nodiscard]] std::optional<std::int64_t> read_number(const std::string& path);

/// The number after `key` in a file of lines "key number", such as memory.events or /proc/vmstat.
[[nodiscard]] std::optional<std::int64_t> read_keyed_number(const std::string& path, std::string_view key);

/// Size and use of a file system, in bytes.
struct ShmSpace {
  std::uint64_t size = 0;
  std::uint64_t used = 0;
};

/// Of /dev/shm; nullopt unless it is a tmpfs with a size limit. Does not block.
[[nodiscard]] std::optional<ShmSpace> shm_space();

/// From /proc/PID/stat, see proc(5).
struct ProcessStat {
  char state = '?';  ///< 'R', 'S', 'T', 'Z'…
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  pid_t foreground = 0;          ///< foreground process group of its terminal; -1: no terminal
  std::uint64_t start_time = 0;  ///< clock ticks since boot; unique together with the pid
};

/// nullopt if there is no such process, or /proc cannot be read.
[[nodiscard]] std::optional<ProcessStat> read_process_stat(pid_t pid);

/// The path of this process's executable (/proc/self/exe); empty if it cannot be read.
[[nodiscard]] std::string own_program();
/// The first executable file of this name in PATH; empty if there is none.
[[nodiscard]] std::string find_in_path(std::string_view name);

}  // namespace ddrun
