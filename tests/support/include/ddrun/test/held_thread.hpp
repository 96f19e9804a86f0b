#pragma once

#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "ddrun/test/files.hpp"
#include "ddrun/test/processes.hpp"

namespace ddrun::test {

/// Stops one thread of another process by ptrace(2), as if it waited for a disk; its other threads run on. Destroy it
/// on the creating thread. Throws if ptrace() is not permitted.
class HeldThread {
 public:
  explicit HeldThread(pid_t thread) : thread_(thread) {
    if (::ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0 || !wait_until([&] { return stop_in_system_call(); })) {
      throw std::system_error(errno, std::generic_category(), "cannot hold a thread");
    }
  }
  ~HeldThread() { ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr); }
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;

 private:
  /// Elsewhere it may hold a lock of the allocator, for which the other threads would wait.
  bool stop_in_system_call() {
    int status = 0;
    if (::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) != 0 || ::waitpid(thread_, &status, __WALL) != thread_) {
      return false;
    }
    if (!read_file("/proc/" + std::to_string(thread_) + "/syscall").starts_with("-1")) return true;
    ::ptrace(PTRACE_CONT, thread_, nullptr, nullptr);
    return false;
  }

  pid_t thread_;
};

}  // namespace ddrun::test
