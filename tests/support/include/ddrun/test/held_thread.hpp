#pragma once

#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <system_error>

namespace ddrun::test {

/// Stops one thread of another process by ptrace(2), as if it waited for a disk; its other threads run on. Destroy it
/// on the creating thread. Throws if ptrace() is not permitted.
class HeldThread {
 public:
  explicit HeldThread(pid_t thread) : thread_(thread) {
    int status = 0;
    if (::ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0 ||
        ::ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) != 0 || ::waitpid(thread_, &status, __WALL) != thread_) {
      throw std::system_error(errno, std::generic_category(), "cannot hold a thread");
    }
  }
  ~HeldThread() { ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr); }
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;

 private:
  pid_t thread_;
};

}  // namespace ddrun::test
