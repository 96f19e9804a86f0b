#pragma once

#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"

namespace ddrun::test {

/// Stops another process's event loop by ptrace(2) while it waits for events, as if it waited for a disk; the other
/// threads run on. Destroy it on the creating thread. Throws if ptrace() is not permitted.
class HeldThread {
 public:
  explicit HeldThread(pid_t thread) : thread_(thread) {
    if (::ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0 || !wait_until([&] { return stop_while_idle(); })) {
      throw std::system_error(errno, std::generic_category(), "cannot hold a thread");
    }
  }
  ~HeldThread() { ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr); }
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;

 private:
  /// Elsewhere, and in calls of the allocator or of a sanitizer, it may hold a lock for which the other threads would
  /// wait.
  bool stop_while_idle() {
    int status = 0;
    if (::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) != 0 || ::waitpid(thread_, &status, __WALL) != thread_) {
      return false;
    }
    const std::string call = read_file("/proc/" + std::to_string(thread_) + "/syscall");
    if (call.starts_with(std::to_string(SYS_epoll_pwait) + " ")) return true;
#ifdef SYS_epoll_wait
    if (call.starts_with(std::to_string(SYS_epoll_wait) + " ")) return true;
#endif
    ::ptrace(PTRACE_CONT, thread_, nullptr, nullptr);
    return false;
  }

  pid_t thread_;
};

}  // namespace ddrun::test
