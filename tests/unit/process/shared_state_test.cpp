#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "ddrun/process/guard.hpp"
#include "ddrun/test/catch.hpp"
#include "sweeper.hpp"

using namespace ddrun;
using namespace ddrun::process;

TEST_CASE("a private directory whose path does not fit in the shared page is refused") {
  const auto shared = std::make_unique<SharedState>();
  const std::string longest(sizeof shared->private_directory - 1, 'd');
  REQUIRE(shared->set_private_directory(longest));
  CHECK(shared->private_directory == longest);
  const auto result = shared->set_private_directory("/" + longest);
  REQUIRE_FALSE(result);
  CHECK(result.error().code == Errc::invalid_argument);
  CHECK(result.error().message == "the path of the job's private directory has 512 bytes, at most 511 are possible");
  CHECK(shared->private_directory == longest);
}

TEST_CASE("the guard is signalled only while it is the parent, or the sweeper's") {
  sigset_t wanted, before;
  ::sigemptyset(&wanted);
  ::sigaddset(&wanted, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &wanted, &before);
  const auto shared = std::make_unique<SharedState>();
  const auto received = [&](std::chrono::milliseconds within) {
    const timespec limit{within.count() / 1000, within.count() % 1000 * 1'000'000};
    siginfo_t info{};
    return ::sigtimedwait(&wanted, &info, &limit) == SIGCHLD && info.si_code == SI_USER;
  };
  SECTION("the pid is another process's by now") {
    int ready[2];
    REQUIRE(::pipe(ready) == 0);
    const pid_t stranger = ::fork();
    if (stranger == 0) {
      ::close(ready[0]);
      const char byte = received(std::chrono::milliseconds(300)) ? 'y' : 'n';
      ::_exit(::write(ready[1], &byte, 1) == 1 ? 0 : 1);
    }
    ::close(ready[1]);
    shared->guard_pid = stranger;
    shared->sweeper_pid = ::getpid();
    shared->set_suspended(true);
    char byte = '?';
    CHECK(::read(ready[0], &byte, 1) == 1);
    CHECK(byte == 'n');
    ::close(ready[0]);
    ::waitpid(stranger, nullptr, 0);
  }
  SECTION("it lives") {
    shared->guard_pid = ::getpid();
    const pid_t agent = ::fork();
    if (agent == 0) {
      shared->signal_guard(SIGCHLD);
      ::_exit(0);
    }
    CHECK(received(std::chrono::seconds(10)));
    ::waitpid(agent, nullptr, 0);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

TEST_CASE("code is dropped from memory only where it can be read again after the program was replaced") {
  for (const long local : {0xEF53L, 0x58465342L, 0x9123683EL, 0x01021994L, 0x794C7630L})
    CHECK(keeps_replaced_programs(local));
  // NFS, Lustre, FUSE, CIFS, SMB 2, 9P, an unknown one.
  for (const long other : {0x6969L, 0x0BD00BD0L, 0x65735546L, 0xFF534D42L, 0xFE534D42L, 0x01021997L, 1L})
    CHECK_FALSE(keeps_replaced_programs(other));
}
