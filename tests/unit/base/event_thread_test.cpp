#include "ddrun/base/event_thread.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>

#include "ddrun/test/catch.hpp"

using namespace ddrun;

namespace {

/// As Docker's profile before 20.10.10, in the calling thread.
bool refuse_clone3() {
  sock_filter code[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_clone3},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program{std::size(code), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

TEST_CASE("the error for a thread that a sandbox forbids names the remedy") {
  std::string message = "no thread";
  std::thread([&] {
    if (!refuse_clone3()) return;
    auto thread = start_thread_signals_blocked("some-thread", [] {});
    message = thread ? "" : thread.error().message;
    if (thread) thread->join();
  }).join();
  if (message.empty() || message == "no thread") test::skip("no seccomp filters here, or threads without clone3");
  CHECK(message ==
        "cannot start the thread some-thread: Operation not permitted; a sandbox forbids clone3, as Docker before "
        "20.10.10 does: update it, or start the container with --security-opt seccomp=unconfined");
}
