// A program that blocks as its argument says, below functions whose names unwinder_test.cpp expects.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#define NOINLINE __attribute__((noinline))

namespace native {

volatile bool goes_on = true;  // else the compiler may leave the loop out
int pipe_ends[2];

/// Keeps a call before it from becoming a jump.
void no_tail_call() { std::atomic_signal_fence(std::memory_order_seq_cst); }

NOINLINE void block_in_read() {
  char byte = 0;
  if (::read(pipe_ends[0], &byte, 1) < 0) std::abort();
}

NOINLINE void on_signal(int /*signal*/) {
  block_in_read();
  no_tail_call();
}

NOINLINE int recurse(int depth) {
  if (depth == 0) block_in_read();
  else recurse(depth - 1);
  no_tail_call();
  return depth;
}

NOINLINE void block(const std::string& kind) {
  if (kind == "read") block_in_read();
  if (kind == "poll") ::poll(nullptr, 0, -1);
  if (kind == "sleep") {
    const timespec long_time{100'000, 0};
    ::nanosleep(&long_time, nullptr);
  }
  if (kind == "mutex") {
    std::mutex mutex;
    mutex.lock();
    mutex.lock();
  }
  if (kind == "handler") {
    ::signal(SIGUSR1, on_signal);
    ::raise(SIGUSR1);
  }
  if (kind == "recursion") recurse(1000);
  while (kind == "spin" && goes_on) {
  }
  no_tail_call();
}

template <class T>
NOINLINE void call(const T& function) {
  function(1);
  no_tail_call();
}

NOINLINE void run_thread() {
  block_in_read();
  no_tail_call();
}

}  // namespace native

int main(int /*argc*/, char** argv) {
  const std::string kind = argv[1];
  // Waits for a program as a runtime with threads does: the main thread does not stand in wait4(2).
  if (kind.starts_with("launch")) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (kind == "launch-quiet") ::dup2(::open("/dev/null", O_WRONLY), 1);
      ::execvp(argv[2], argv + 2);
      ::_exit(127);
    }
    if (kind == "launch-receive" && ::socketpair(AF_UNIX, SOCK_STREAM, 0, native::pipe_ends) == 0)
      ::recv(native::pipe_ends[0], native::pipe_ends, 1, 0);
    std::thread(::waitpid, child, nullptr, 0).join();
    return 0;
  }
  if (::pipe(native::pipe_ends) != 0) return 1;
  std::thread first;
  std::thread second;
  if (kind == "threads") {
    first = std::thread(native::run_thread);
    second = std::thread(native::run_thread);
  }
  native::call([&](int) NOINLINE {
    native::block(kind == "threads" ? "read" : kind);
    native::no_tail_call();
  });
  native::no_tail_call();
}
