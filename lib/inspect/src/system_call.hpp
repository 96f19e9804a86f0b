#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

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

struct TcpSocket {
  std::string own;   ///< "10.0.0.2:4711", "[::1]:4711"; of one that listens "*:4711"
  std::string peer;  ///< empty: it listens
  bool operator==(const TcpSocket&) const = default;
};
/// By inode.
using TcpTable = std::unordered_map<std::string, TcpSocket>;
/// From the text of /proc/net/tcp or tcp6.
[[nodiscard]] TcpTable parse_tcp_table(std::string_view text);

/// The tables of each network namespace, read once: a look at one costs as much as all of its sockets.
class TcpTables {
 public:
  static constexpr std::size_t max_bytes = std::size_t{4} << 20U;
  explicit TcpTables(std::size_t limit = max_bytes) : limit_(limit) {}

  /// `link`: of a descriptor. Null: it is no TCP socket, or not in the part of the table that was read.
  [[nodiscard]] const TcpSocket* find(pid_t pid, std::string_view link);
  /// Whether find() has read all that it had to.
  [[nodiscard]] bool are_whole() const { return are_whole_; }

 private:
  std::size_t limit_;
  bool are_whole_ = true;
  std::map<std::string, TcpTable> tables_;  ///< by the link /proc/PID/ns/net
};

/// What a thread does in this call.
struct Activity {
  std::string text;  ///< "sleeps", "reads /mnt/x", "receives from 10.0.0.2:4711", "system call 425"
  bool on_futex = false;
  bool on_socket = false;
  std::vector<std::string> peers = {};  ///< as in ThreadStack
  bool of_several = false;              ///< descriptors, as in an event loop
  bool awaits_child = false;
  pid_t child = 0;        ///< the one that is awaited, in the process's own PID namespace; 0: any
  std::string pipe = {};  ///< "pipe:[4711]": what it reads or waits for; empty: no pipe
};

/// `memory`, of the process, tells which descriptors a poll is about; null: not known. Reads links and tables in /proc
/// of the process. `with_sets`: also the sockets of a poll or epoll of several, for which it reads all of the tables.
[[nodiscard]] Activity describe_system_call(SystemCall call, pid_t pid, const Memory* memory, TcpTables& tables,
                                            bool with_sets);

/// Where a link of /proc leads to; empty if it cannot be read.
[[nodiscard]] std::string read_link(const std::string& link);
/// /proc/PID/fd/FD
[[nodiscard]] std::string link_of(pid_t pid, int fd);

}  // namespace ddrun::inspect
