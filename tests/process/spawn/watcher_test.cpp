#include "ddrun/process/child_watcher.hpp"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <map>

#include "ddrun/process/process_tree.hpp"
#include "ddrun/process/signal_source.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"
#include "spawn_worker.hpp"

using namespace ddrun;
using namespace ddrun::process;
using namespace std::chrono_literals;

namespace {

/// A little agent: spawns test workers and collects how they end.
struct Fixture {
  explicit Fixture(bool pidfd) : launcher(Launcher::create(pidfd).value()) {
    block_handled_signals();
    REQUIRE(watcher.open());
    REQUIRE(signals.open());
  }

  pid_t spawn(const std::vector<std::string>& words) {
    auto spawned = test::spawn_worker(launcher, words);
    REQUIRE(spawned);
    children.emplace_back(context.get_executor(), std::move(*spawned));
    REQUIRE(watcher.watch(children.back()));
    return children.back().pid();
  }

  bool run_until(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (!condition() && std::chrono::steady_clock::now() < deadline) context.run_one_for(50ms);
    return condition();
  }

  boost::asio::io_context context;
  Launcher launcher;
  std::map<pid_t, ChildEnd> ends;
  int orphans = 0;
  ChildWatcher watcher{context.get_executor(), [this](const ChildEnd& end) { ends[end.pid] = end; },
                       [this] { ++orphans; }};
  SignalSource signals{context.get_executor(), [this](const SignalEvent& event) {
                         if (event.signal == SIGCHLD) watcher.reap();
                       }};
  std::vector<Child> children;
};

}  // namespace

TEST_CASE("ends are reported with status and usage, with and without pidfd") {
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
  CHECK_FALSE(any_child_left());
}

TEST_CASE("an orphan is adopted and reaped") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  Fixture fixture(true);
  fixture.spawn({"stray", "exit", "0", ";", "exit", "0"});
  REQUIRE(fixture.run_until([&] { return fixture.ends.size() == 1 && !any_child_left(); }));
  CHECK(fixture.orphans >= 1);
}

TEST_CASE("hundreds at once are all seen") {
  const bool pidfd = GENERATE(true, false);
  Fixture fixture(pidfd);
  fixture.children.reserve(300);
  for (int i = 0; i < 300; ++i) fixture.spawn({"exit", std::to_string(i % 256)});
  REQUIRE(fixture.run_until([&] { return fixture.ends.size() == 300; }));
  CHECK_FALSE(any_child_left());
}

TEST_CASE("the whole tree below us is found and killed") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  test::TemporaryDirectory directory;
  Launcher launcher = Launcher::create().value();
  const std::string ready = directory.file("ready");
  const std::vector<std::string> words = {"ignore", "TERM",    "child", "child",  "forever", ";",
                                          "stray",  "ignore",  "TERM",  "touch",  ready,     "stop",
                                          ";",      "forever", ";",     "forever"};
  REQUIRE(test::spawn_worker(launcher, words));
  REQUIRE(test::wait_until([&] { return ::access(ready.c_str(), F_OK) == 0; }));
  REQUIRE(test::wait_until([&] { return descendants(::getpid()).size() >= 4; }));
  CHECK(kill_all_descendants(std::chrono::steady_clock::now() + 10s) == 0);
  CHECK(descendants(::getpid()).empty());
}
