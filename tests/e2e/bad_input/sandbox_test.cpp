// Sandboxes that refuse system calls (seccomp, SELinux): what ddrun needs without them, and what it says.

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../job.hpp"
#include "ddrun/test/seccomp.hpp"

using namespace ddrun::test;

namespace {

RunOptions without(long number, int error, std::optional<unsigned> second_argument = {}) {
  RunOptions options;
  options.in_child = [=] {
    if (!deny(number, error, second_argument)) ::_exit(99);
  };
  return options;
}

}  // namespace

TEST_CASE("A system call that an old sandbox refuses with EPERM is done without") {
  const auto [name, number] = GENERATE(table<const char*, long>({{"faccessat2", SYS_faccessat2},
                                                                 {"pidfd_open", SYS_pidfd_open},
                                                                 {"pidfd_send_signal", SYS_pidfd_send_signal},
                                                                 {"close_range", SYS_close_range},
                                                                 {"renameat2", SYS_renameat2},
                                                                 {"memfd_create", SYS_memfd_create},
                                                                 {"statx", SYS_statx},
                                                                 {"symlinkat", SYS_symlinkat},
                                                                 {"epoll_pwait2", SYS_epoll_pwait2}}));
  CAPTURE(name);
  for (const int error : {EPERM, ENOSYS}) {
    CAPTURE(error);
    const TemporaryDirectory dir;
    const auto outcome = finish(command({"-n", "1", "-t", "3", "--log-dir", dir.path(), "--log-rotate=1K", "/bin/sh",
                                         "-c", "sleep 1000 & setsid sleep 1000 & echo rank $RANK; exit 3"}),
                                without(number, error));
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 3);
    CHECK(has(outcome.out, "rank 0\n"));
  }
}

TEST_CASE("A text is printed without a second process") {
  const std::vector<std::string> words =
      GENERATE(Words{"--version"}, Words{"-V"}, Words{"--help"}, Words{"-h"}, Words{"version"}, Words{"help", "store"},
               Words{"config", "show"}, Words{"completion", "bash"});
  CAPTURE(words);
  const auto outcome = finish(command(words), without(SYS_clone, EPERM));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK_FALSE(outcome.out.empty());
}

TEST_CASE("Where no thread may be started the message says why, once a worker needs the store") {
  const Words program{"/bin/sh", "-c", "[ $0 = none ] || exec $0 store set key value"};
  const auto needs_none =
      finish(command({"-n", "2", program[0], program[1], program[2], "none"}), without(SYS_clone3, EPERM));
  CHECK(needs_none.code() == 0);
  const auto outcome =
      finish(command({"-n", "2", program[0], program[1], program[2], DDRUN_TEST_DDRUN}), without(SYS_clone3, EPERM));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "a sandbox forbids clone3"));
}

TEST_CASE("An event loop that can wait for nothing is no success") {
  const int error = GENERATE(EPERM, EACCES);
  const auto outcome = finish(job({"-n", "2"}, {"exit", "3"}), without(SYS_ioctl, error, FIONBIO));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "ddrun: error: "));
}
