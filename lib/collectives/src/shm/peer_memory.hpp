#pragma once

#include <cstddef>
#include <cstdint>

namespace ddrun::collectives {

/// From memory of the process `pid` of this machine, or of this process itself, to this one's: one copy, by the system
/// (process_vm_readv). 0, or an errno: EPERM where it is not allowed, ESRCH if the process is gone, EFAULT if there is
/// no such memory, here or there. What was copied before a failure stays copied. Does not wait.
[[nodiscard]] int copy_from_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes);

/// The same the other way (process_vm_writev).
[[nodiscard]] int copy_to_process(int pid, std::byte* to, const std::byte* from, std::size_t bytes);

/// A place in a process in which others find out whether they may reach into it. It outlives their trials.
struct Trial {
  std::uint64_t word = 0;  ///< what they have to find
  std::uint64_t room = 0;  ///< where they write

  /// What they are told of it.
  struct Note {
    std::uint64_t address;
    std::uint64_t word;
  };
};
/// Reads and writes it: 0, or an errno.
[[nodiscard]] int try_process(int pid, const Trial::Note& note);
/// Whether the process is gone, or going.
[[nodiscard]] bool is_gone(int pid, const Trial::Note& note);

/// Where Yama restricts who may reach into a process to its ancestors (kernel.yama.ptrace_scope = 1, as on Ubuntu):
/// lets all processes of this user reach into this one, as they may without Yama. Given back (PR_SET_PTRACER 0) when
/// the last one of a process ends. Elsewhere it does nothing.
class OpenToPeers {
 public:
  OpenToPeers();
  OpenToPeers(const OpenToPeers&) = delete;
  OpenToPeers& operator=(const OpenToPeers&) = delete;
  ~OpenToPeers();
};

}  // namespace ddrun::collectives
