// Coprocesses: lines in both directions, exits, no process left.

#include "ddrun/helper/coprocess.hpp"

#include <stdlib.h>

#include <boost/asio/io_context.hpp>
#include <optional>

#include "ddrun/helper/run.hpp"
#include "ddrun/process/process_tree.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/processes.hpp"
#include "ddrun/test/soon.hpp"

using namespace ddrun;
using namespace std::chrono_literals;

namespace {

/// A script as coprocess.
struct Talker {
  explicit Talker(const std::string& script) {
    auto started = helper::Coprocess::start(
        io.get_executor(), {"sh", "-c", script}, "GREETING=it is",
        [this](std::string_view line) { lines.emplace_back(line); },
        [this](std::string text) { why = std::move(text); });
    REQUIRE(started);
    coprocess = std::move(*started);
  }
  bool run_until(const std::function<bool()>& condition) {
    const auto end = test::soon();
    while (!condition() && Clock::now() < end) io.run_one_for(10ms);
    return condition();
  }
  std::string end() {
    REQUIRE(run_until([this] { return why.has_value(); }));
    return *why;
  }

  boost::asio::io_context io{1};
  std::vector<std::string> lines;
  std::optional<std::string> why;
  std::unique_ptr<helper::Coprocess> coprocess;
};

/// Runs the test with or without pidfds.
class WithPidfds {
 public:
  explicit WithPidfds(bool there) {
    if (!there) ::setenv("DDRUN_NO_PIDFD", "1", 1);
  }
  ~WithPidfds() { ::unsetenv("DDRUN_NO_PIDFD"); }
};

}  // namespace

TEST_CASE("a coprocess gets the extra variable, this process does not") {
  Talker talk("echo $GREETING $HOME");
  (void)talk.end();
  CHECK(talk.lines == std::vector<std::string>{std::string("it is ") + ::getenv("HOME")});
  CHECK(::getenv("GREETING") == nullptr);
}

TEST_CASE("lines go both ways, and the exit is reported with status and last stderr line") {
  const bool pidfd = GENERATE(true, false);
  CAPTURE(pidfd);
  const WithPidfds pidfds(pidfd);
  Talker talk(
      "while read -r line && [ \"$line\" != quit ]; do echo \"you said $line\"; done; echo bye; echo one >&2; echo two "
      ">&2; exit 3");
  talk.coprocess->send_line("hello world");
  REQUIRE(talk.run_until([&] { return talk.lines == std::vector<std::string>{"you said hello world"}; }));
  talk.coprocess->send_line("a");
  talk.coprocess->send_line("b");
  talk.coprocess->send_line("quit");
  CHECK(talk.end() == "sh exited with code 3: two");
  CHECK(talk.lines == std::vector<std::string>{"you said hello world", "you said a", "you said b", "bye"});
  CHECK_FALSE(process::has_children());
}

TEST_CASE("descendants of a coprocess are killed with it, even if they hold its stdout") {
  const bool pidfd = GENERATE(true, false);
  const WithPidfds pidfds(pidfd);
  Talker talk("sleep 1000 & echo started");
  CHECK(talk.end() == "sh exited with code 0");
  CHECK(talk.lines == std::vector<std::string>{"started"});
  CHECK(test::wait_until([] { return test::descendants_of(::getpid()).empty(); }));
}

TEST_CASE("a coprocess that reads nothing or has closed its stdout is killed") {
  Talker reads_nothing("sleep 1000");
  for (int i = 0; i < 40; ++i) reads_nothing.coprocess->send_line(std::string(60'000, 'x'));
  CHECK(reads_nothing.end() == "sh does not read its stdin");
  Talker closes_stdout("exec >&-; sleep 1000");
  CHECK(closes_stdout.end() == "sh has closed its stdout");
  Talker endless("yes | tr -d '\\n'");
  CHECK(endless.end() == "sh printed a line that is too long");
  CHECK(test::wait_until([] { return test::descendants_of(::getpid()).empty(); }));
}

TEST_CASE("a dropped coprocess is killed, also in its line callback, without further callbacks") {
  Talker talk("echo one; sleep 1000");
  talk.coprocess.reset();
  CHECK_FALSE(process::has_children());
  CHECK_FALSE(talk.run_until([&] { return talk.io.poll(), talk.io.stopped(); }) == false);
  CHECK(talk.lines.empty());
  CHECK_FALSE(talk.why);
}

TEST_CASE("a coprocess may be reaped by the reaper of all children") {
  Talker talk("read -r line; exit 5");
  const auto pid = test::descendants_of(::getpid());
  REQUIRE(pid.size() == 1);
  talk.coprocess->send_line("");
  // The other reaper sees the exit first.
  REQUIRE(test::wait_until([&] {
    talk.io.poll();
    return helper::reap(pid[0]) == false || test::descendants_of(::getpid()).empty();
  }));
  CHECK(talk.end() == "sh exited with code 5");
}
