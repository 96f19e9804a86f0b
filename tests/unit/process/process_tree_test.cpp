#include "ddrun/process/process_tree.hpp"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/helper/run.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"

using namespace ddrun;
using namespace ddrun::process;
using namespace std::chrono_literals;

namespace {

/// A tree of processes: a child, its two children, and a child of the second one. All sleep in pause().
class TestTree {
 public:
  TestTree() {
    auto pipe = make_pipe();
    REQUIRE(pipe);
    child = ::fork();
    if (child == 0) {
      ::setpgid(0, 0);
      if (::fork() == 0) sleep_for_ever(pipe->write.get());
      if (::fork() == 0) {
        ::prctl(PR_SET_NAME, "a) b (c) R 1 2");  // must not break the parser of /proc/PID/stat
        ::setsid();
        if (::fork() == 0) sleep_for_ever(pipe->write.get());
        sleep_for_ever(pipe->write.get());
      }
      sleep_for_ever(pipe->write.get());
    }
    char ready[4];
    for (std::size_t n = 0; n < sizeof ready; ++n) REQUIRE(::read(pipe->read.get(), ready + n, 1) == 1);
  }
  ~TestTree() {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    kill_all_descendants(std::chrono::steady_clock::now() + 20s);
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
  TestTree(const TestTree&) = delete;
  TestTree& operator=(const TestTree&) = delete;

  pid_t child = 0;

 private:
  [[noreturn]] static void sleep_for_ever(int ready) {
    [[maybe_unused]] const ssize_t n = ::write(ready, "", 1);
    while (true) ::pause();
  }
};

/// The case runs with the kernel's lists of children, and as on a kernel that has none.
class WithAndWithoutLists {
 public:
  WithAndWithoutLists() {
    if (GENERATE(false, true)) ::setenv("DDRUN_NO_PROC_CHILDREN", "1", 1);
  }
  ~WithAndWithoutLists() { ::unsetenv("DDRUN_NO_PROC_CHILDREN"); }
  WithAndWithoutLists(const WithAndWithoutLists&) = delete;
  WithAndWithoutLists& operator=(const WithAndWithoutLists&) = delete;
};

pid_t fork_sleeper() {
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  return child;
}

void kill_and_reap(pid_t child) {
  ::kill(child, SIGKILL);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
}

const ProcessInfo* find(const std::vector<ProcessInfo>& all, pid_t pid) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const ProcessInfo& info) { return info.pid == pid; });
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("all descendants are found and parents precede their children") {
  const WithAndWithoutLists lists;
  const TestTree tree;
  const auto all = descendants(::getpid());
  REQUIRE(all.size() == 4);
  CHECK(all[0].pid == tree.child);
  CHECK(all[0].parent == ::getpid());
  CHECK(all[0].group == tree.child);
  CHECK(find(all, ::getpid()) == nullptr);
  for (std::size_t i = 1; i < all.size(); ++i) {
    const ProcessInfo* parent = find(all, all[i].parent);
    REQUIRE(parent != nullptr);
    CHECK(parent < &all[i]);
    // Blocked in pause(), or on the way there.
    CHECK((all[i].state == 'S' || all[i].state == 'R'));
  }
  const auto below = descendants(tree.child);
  CHECK(below.size() == 3);
  CHECK(std::count_if(below.begin(), below.end(), [&](const auto& info) { return info.group == tree.child; }) == 1);
  CHECK(std::any_of(below.begin(), below.end(),
                    [](const ProcessInfo& info) { return process_name(info.pid) == "a) b (c) R 1 2"; }));
}

TEST_CASE("an excluded child and its descendants are neither listed nor killed") {
  const WithAndWithoutLists lists;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t excluded = ::fork();
  if (excluded == 0) {
    if (::fork() >= 0) ::pause();
    ::_exit(0);
  }
  REQUIRE(test::wait_until([&] { return descendants(excluded).size() == 1; }));
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto all = descendants(::getpid(), {excluded});
  REQUIRE(all.size() == 1);
  CHECK(all[0].pid == child);
  CHECK(kill_all_descendants(std::chrono::steady_clock::now() + 20s, excluded) == 0);
  CHECK(find(descendants(::getpid()), child) == nullptr);
  CHECK(descendants(::getpid()).size() == 2);
  CHECK(kill_all_descendants(std::chrono::steady_clock::now() + 20s) == 0);
  CHECK_FALSE(has_children());
}

TEST_CASE("a zombie is listed as one") {
  const WithAndWithoutLists lists;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t info{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
  const auto all = descendants(::getpid());
  REQUIRE(all.size() == 1);
  CHECK(all[0].pid == child);
  CHECK(all[0].state == 'Z');
  CHECK(descendants(child).empty());
  ::waitpid(child, nullptr, 0);
  CHECK(descendants(::getpid()).empty());
  CHECK(process_name(child).empty());
}

TEST_CASE("killing all descendants leaves none and ends before its time limit") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const auto start = std::chrono::steady_clock::now();
  {
    const TestTree tree;
    CHECK(kill_all_descendants(start + 20s) == 0);
    CHECK(descendants(::getpid()).empty());
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
  }
  CHECK(std::chrono::steady_clock::now() - start < 10s);
}

TEST_CASE("processes outside of the tree are not read") {
  if (!read_small_file("/proc/thread-self/children")) test::skip("the kernel lists no children");
  constexpr std::int64_t outside = 300;
  const auto reads = [] { return read_keyed_number("/proc/self/io", "syscr:"); };
  if (!reads()) test::skip("the kernel counts no system calls");
  auto alive = make_pipe();
  auto ready = make_pipe();
  REQUIRE(alive);
  REQUIRE(ready);
  const pid_t other = ::fork();  // its children are siblings of this test's own
  if (other == 0) {
    alive->write.reset();
    char none;
    for (int i = 0; i < outside; ++i) {
      if (::fork() == 0) ::_exit(static_cast<int>(::read(alive->read.get(), &none, 1)));
    }
    ready->write.reset();
    ::_exit(static_cast<int>(::read(alive->read.get(), &none, 1)));
  }
  ready->write.reset();
  const pid_t child = fork_sleeper();
  REQUIRE(test::wait_until([&] { return descendants(other).size() == outside; }));
  helper::register_child(other);

  const auto before = reads();
  CHECK(has_workers());
  CHECK(workers_and_their_descendants().size() == 1);
  CHECK(descendants(child).empty());
  CHECK(*reads() - *before < outside / 4);
  kill_and_reap(child);
  CHECK_FALSE(has_workers());
  CHECK(kill_all_descendants(std::chrono::steady_clock::now() + 20s, other) == 0);
  CHECK(*reads() - *before < outside / 2);

  helper::unregister_child(other);
  alive->write.reset();
  REQUIRE(::waitpid(other, nullptr, 0) == other);
}

TEST_CASE("any child that is no helper is a worker's, and a helper's children are not") {
  const WithAndWithoutLists lists;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  CHECK_FALSE(has_workers());
  auto pipe = make_pipe();
  REQUIRE(pipe);
  const pid_t helper = ::fork();
  if (helper == 0) {
    const pid_t below = fork_sleeper();
    [[maybe_unused]] const ssize_t sent = ::write(pipe->write.get(), &below, sizeof below);
    while (true) ::pause();
  }
  pid_t stray = 0;
  REQUIRE(::read(pipe->read.get(), &stray, sizeof stray) == sizeof stray);
  CHECK(has_workers());
  helper::register_child(helper);
  CHECK_FALSE(has_workers());

  SECTION("a child of another thread") {
    pid_t child = 0;
    bool found = false;
    std::thread([&] {
      child = fork_sleeper();
      found = has_workers();
    }).join();
    CHECK(found);
    CHECK(has_workers());
    kill_and_reap(child);
  }
  SECTION("a zombie") {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(0);
    siginfo_t info{};
    REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) == 0);
    CHECK(has_workers());
    REQUIRE(::waitpid(child, nullptr, 0) == child);
  }
  SECTION("an orphan that this process has adopted") {
    kill_and_reap(helper);
    helper::unregister_child(helper);
    const pid_t other = fork_sleeper();
    helper::register_child(other);
    CHECK(has_workers());
    kill_and_reap(stray);
    helper::unregister_child(other);
    kill_and_reap(other);
    CHECK_FALSE(has_workers());
    return;
  }
  CHECK_FALSE(has_workers());
  kill_and_reap(helper);
  helper::unregister_child(helper);
  CHECK(has_workers());  // what it has left
  kill_and_reap(stray);
}

TEST_CASE("a process that reuses the pid of a found one is not signalled") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // until the tree is gone
  const TestTree tree;
  auto all = descendants(::getpid());
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const ProcessInfo& info) { return info.parent == tree.child; });
  REQUIRE(found != all.end());
  const ProcessInfo grandchild = *found;
  ProcessInfo earlier = grandchild;
  earlier.start_time -= 1;
  CHECK_FALSE(signal_descendant(earlier, SIGKILL));
  ProcessInfo elsewhere = grandchild;
  elsewhere.parent = 1;
  CHECK_FALSE(signal_descendant(elsewhere, SIGKILL));
  CHECK(signal_descendant(grandchild, 0));
  CHECK(signal_descendant(grandchild, SIGKILL));
  CHECK(test::wait_until([&] {
    all = descendants(::getpid());
    const auto* now = find(all, grandchild.pid);
    return now == nullptr || now->state == 'Z';
  }));
}

TEST_CASE("the number of survivors is unknown where /proc cannot be read") {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0) {
      ::_exit(2);
    }
    const pid_t left = ::fork();
    if (left == 0) {
      while (true) ::pause();
    }
    const bool known = kill_all_descendants(std::chrono::steady_clock::now() + 50ms).has_value();
    ::kill(left, SIGKILL);
    ::_exit(known ? 1 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) test::skip("no mounts can be made here");
  CHECK(WEXITSTATUS(status) == 0);
}
