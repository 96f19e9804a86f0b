#include "ddrun/base/event_thread.hpp"

#include <sys/syscall.h>

#include <cerrno>
#include <string>
#include <thread>

#include "ddrun/test/catch.hpp"
#include "ddrun/test/seccomp.hpp"

using namespace ddrun;

TEST_CASE("the error for a thread that a sandbox forbids names the remedy") {
  std::string message = "no thread";
  std::thread([&] {
    if (!test::deny(SYS_clone3, EPERM)) return;  // as Docker's profile before 20.10.10
    auto thread = start_thread_signals_blocked("some-thread", [] {});
    message = thread ? "" : thread.error().message;
    if (thread) thread->join();
  }).join();
  if (message.empty() || message == "no thread") test::skip("no seccomp filters here, or threads without clone3");
  CHECK(message ==
        "cannot start the thread some-thread: Operation not permitted; a sandbox forbids clone3, as Docker before "
        "20.10.10 does: update it, or start the container with --security-opt seccomp=unconfined");
}
