#include <signal.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "ddrun/process/guard.hpp"
#include "ddrun/process/startup_pages.hpp"
#include "ddrun/test/catch.hpp"

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

namespace {

/// Those of a mapping of this program, between whose variables AddressSanitizer lays bytes that may not be read.
__attribute__((no_sanitize("address"))) void use_pages(std::uintptr_t begin, std::uintptr_t end) {
  for (; begin < end; begin += 4096) (void)*reinterpret_cast<const volatile char*>(begin);  // NOLINT
}

}  // namespace

TEST_CASE("pages of the program's file are given back, but for those that were written") {
  std::string program = std::filesystem::read_symlink("/proc/self/exe");
  struct statfs info {};
  REQUIRE(::statfs(program.c_str(), &info) == 0);
  if (!keeps_replaced_programs(info.f_type)) test::skip("the test is on a network file system");
  const auto resident_kib = [&](bool use_all) {
    std::ifstream maps("/proc/self/smaps");
    std::string line;
    long total = 0;
    for (bool counts = false; std::getline(maps, line);) {
      if (line.find('-') < line.find(' ')) {
        counts = line.ends_with(program);
        const auto begin = std::stoul(line, nullptr, 16);
        const auto end = std::stoul(line.substr(line.find('-') + 1), nullptr, 16);
        if (use_all && counts) use_pages(begin, end);
      }
      if (counts && line.starts_with("Rss:")) total += std::stol(line.substr(4));
      if (counts && line.starts_with("Anonymous:")) total -= std::stol(line.substr(10));
    }
    return total;
  };
  (void)resident_kib(true);
  const long before = resident_kib(false);
  drop_startup_pages();
  CHECK(resident_kib(false) < before / 2);
}
