#pragma once

#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>

#include <cerrno>
#include <system_error>

namespace ddrun::test {

/// A thread of another process that stands still for as long as this lives, as one does that waits for a disk; the
/// others of its process run on. For the thread that made it only. Throws where the system does not let us.
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
