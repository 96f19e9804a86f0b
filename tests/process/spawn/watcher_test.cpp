#include "ddrun/process/child_watcher.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <map>

#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/signals.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"
#include "spawn_worker.hpp"

using namespace ddrun;
using namespace ddrun::process;
using namespace std::chrono_literals;

namespace {

/// A minimal agent: spawns test workers and records their exits.
struct Fixture {
  explicit Fixture(bool pidfd) : launcher(Launcher::create(pidfd).value()) {
    block_handled_signals();
    REQUIRE(watcher.open());
    REQUIRE(signals.open());
  }

  pid_t spawn(const std::vector<std::string>& arguments) {
    auto spawned = test::spawn_worker(launcher, arguments);
    REQUIRE(spawned);
    children.push_back(std::move(*spawned));
    watcher.watch(children.back().pid, children.back().pidfd.get());
    return children.back().pid;
  }

  bool run_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!condition() && std::chrono::steady_clock::now() < deadline) context.run_one_for(50ms);
    return condition();
  }

  boost::asio::io_context context;
  Launcher launcher;
  std::map<pid_t, ChildEnd> ends;
  std::vector<pid_t> order;  ///< of the reports
  int orphans = 0;
  ChildWatcher watcher{context.get_executor(),
                       [this](const ChildEnd& end) {
                         ends[end.pid] = end;
                         order.push_back(end.pid);
                       },
                       [this] { ++orphans; }};
  SignalSource signals{context.get_executor(), [this](const SignalEvent& event) {
                         if (event.signal == SIGCHLD) watcher.reap(event.sender);
                       }};
  std::vector<Spawned> children;
};

}  // namespace

TEST_CASE("exits are reported with status and usage, with and without pidfd") {
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  Fixture fixture(pidfd);
  const pid_t nine = fixture.spawn({"memory", "30", "spin", "20", "exit", "9"});
  const pid_t killed = fixture.spawn({"signal", "KILL"});
  REQUIRE(fixture.run_until([&] { return fixture.ends.size() == 2; }));
  CHECK(fixture.ends[nine].status == ExitStatus(Exited{9}));
  CHECK(fixture.ends[killed].status == ExitStatus(Signaled{SIGKILL, false}));
  CHECK(fixture.ends[nine].use.ru_maxrss > 30 * 1024);
  CHECK(fixture.ends[nine].use.ru_utime.tv_usec + fixture.ends[nine].use.ru_stime.tv_usec > 10'000);
  CHECK_FALSE(has_children());
}

TEST_CASE("an orphan is adopted and reaped") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Fixture fixture(true);
  fixture.spawn({"stray", "exit", "0", ";", "exit", "0"});
  REQUIRE(fixture.run_until([&] { return fixture.ends.size() == 1 && !has_children(); }));
  CHECK(fixture.orphans >= 1);
}

TEST_CASE("hundreds of simultaneous exits are all reported") {
  const bool pidfd = GENERATE(true, false);
  Fixture fixture(pidfd);
  fixture.children.reserve(300);
  for (int i = 0; i < 300; ++i) fixture.spawn({"exit", std::to_string(i % 256)});
  REQUIRE(fixture.run_until([&] { return fixture.ends.size() == 300; }));
  CHECK_FALSE(has_children());
}

TEST_CASE("the first exit is reported first, with and without pidfd") {
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  Fixture fixture(pidfd);
  const pid_t oldest = fixture.spawn({"forever"});
  const pid_t middle = fixture.spawn({"forever"});
  const pid_t youngest = fixture.spawn({"forever"});
  fixture.context.poll();  // a signal of an earlier end may be pending
  // They exit one after the other before the watcher reads any event.
  const auto end = [](pid_t pid) {
    ::kill(pid, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  };
  for (const pid_t pid : {youngest, middle, oldest}) end(pid);
  REQUIRE(fixture.run_until([&] { return fixture.ends.size() == 3; }));
  CHECK(fixture.order.front() == youngest);
  if (pidfd) CHECK(fixture.order == std::vector<pid_t>{youngest, middle, oldest});
}

TEST_CASE("a dead child that a debugger holds causes no busy loop and is reported at last") {
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  auto go = make_pipe(0);
  auto seized = make_pipe(0);
  REQUIRE((go && seized));
  Fixture fixture(pidfd);
  const pid_t child = fixture.spawn({"forever"});
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    go->write.reset();
    char byte = ::ptrace(PTRACE_SEIZE, child, 0, 0) == 0 ? '1' : '0';
    (void)!::write(seized->write.get(), &byte, 1);
    (void)!::read(go->read.get(), &byte, 1);  // until the test closes its end
    ::_exit(0);
  }
  go->read.reset();
  char allowed = '0';
  REQUIRE(::read(seized->read.get(), &allowed, 1) == 1);
  if (allowed != '1') {
    ::kill(child, SIGKILL);
    ::kill(tracer, SIGKILL);
    REQUIRE(fixture.run_until([&] { return fixture.ends.size() == 1; }));
    test::skip("no process may be traced here");
  }
  ::kill(child, SIGKILL);
  REQUIRE(test::wait_until(
      [&] { return test::read_file("/proc/" + std::to_string(child) + "/stat").find(") Z") != std::string::npos; }));
  // After a few turns of the loop nothing is ready.
  for (int turn = 0; turn < 100 && fixture.context.poll_one() != 0; ++turn) {
  }
  CHECK(fixture.context.poll_one() == 0);
  CHECK(fixture.ends.empty());
  go->write.reset();
  CHECK(fixture.run_until([&] { return fixture.ends.size() == 1; }));
}
