#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "memory.hpp"

namespace ddrun::inspect {

/// The system call in which a thread is: /proc/PID/task/TID/syscall, see proc(5).
struct SystemCall {
  long number = -1;  ///< -1: none, the thread is blocked in the kernel for another reason
  std::array<std::uint64_t, 6> arguments{};
  std::uint64_t stack_pointer = 0;
  std::uint64_t program_counter = 0;
};

/// Nothing for "running", and for text that is no such line.
[[nodiscard]] std::optional<SystemCall> parse_system_call(std::string_view line);

/// What a thread does in this call.
struct Activity {
  std::string text;  ///< "sleeps", "reads /mnt/x", "receives from 10.0.0.2:4711", "system call 425"
  bool on_socket = false;
  bool awaits_child = false;
};

/// `memory`, of the process, tells which descriptors a poll is about; null: not known. Reads links and tables in /proc
/// of the process, no file of its own.
[[nodiscard]] Activity describe_system_call(const SystemCall& call, pid_t pid, const Memory* memory);

/// The peer of a TCP socket by its inode, from the text of /proc/net/tcp or tcp6: "10.0.0.2:4711", "[::1]:4711"; the
/// own address of one that listens, as "*:4711"; empty if it is not there.
[[nodiscard]] std::string find_tcp_peer(std::string_view table, std::string_view inode);

}  // namespace ddrun::inspect
