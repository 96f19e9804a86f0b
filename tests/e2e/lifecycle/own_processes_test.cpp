#include <signal.h>

#include <filesystem>
#include <map>
#include <sstream>
#include <system_error>

#include "../job.hpp"

using namespace ddrun::test;

namespace {

/// A job of two that is up; guard, sweeper and agent in this order.
struct Up {
  Up()
      : run(job({"-n", "2", "--shutdown-timeout=5"},
                {"tell", "TERM", "print", "ready", "heard", "1", "print", "tidied up"})) {
    REQUIRE(wait_until([&] { return count(run.out(), "ready\n") == 2; }));
    const auto below = descendants_of(run.pid());
    REQUIRE(below.size() == 4);
    guard = run.pid();
    sweeper = below[0];
    agent = below[1];
  }
  Run run;
  pid_t guard = 0, sweeper = 0, agent = 0;
};

/// How often each pidfd of a process is in one of its epoll sets.
std::map<std::string, std::size_t> watches_of_pidfds(pid_t pid) {
  namespace fs = std::filesystem;
  std::map<std::string, std::size_t> watches;
  std::string sets;
  const std::string own = "/proc/" + std::to_string(pid);
  for (const auto& entry : fs::directory_iterator(own + "/fd")) {
    std::error_code gone;
    const std::string what = fs::read_symlink(entry.path(), gone).string();
    const std::string number = entry.path().filename().string();
    if (has(what, "pidfd")) watches[number] = 0;
    if (has(what, "[eventpoll]")) sets += read_file(own + "/fdinfo/" + number);
  }
  std::istringstream words(sets);  // "tfd:        5 events: …"
  for (std::string word, number; words >> word;) {
    if (word == "tfd:" && words >> number && watches.count(number) != 0) ++watches[number];
  }
  return watches;
}

}  // namespace

TEST_CASE("Each worker is watched by one registration of its pidfd") {
  Up up;
  const auto watches = watches_of_pidfds(up.agent);
  if (watches.empty()) skip("no pidfds here");
  CHECK(watches.size() == 2);
  for (const auto& [fd, count] : watches) {
    CAPTURE(fd);
    CHECK(count == 1);
  }
  up.run.signal(SIGTERM);
  up.run.wait();
  CHECK(up.run.all_gone());
}

TEST_CASE("Without its guard the job ends in order") {
  Up up;
  REQUIRE(up.run.signal(up.guard, SIGKILL));
  CHECK(up.run.all_gone());
  const auto outcome = up.run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGKILL);
  CHECK(count(outcome.out, "tidied up\n") == 2);
  CHECK(has(outcome.err, "ddrun's own guard (pid " + std::to_string(up.guard) + ") was killed"));
}

TEST_CASE("Without its agent the job ends at once with 125 and the reason") {
  Up up;
  REQUIRE(up.run.signal(up.agent, SIGKILL));
  CHECK(up.run.all_gone());
  const auto outcome = up.run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(has(outcome.err, "ddrun's own agent (pid " + std::to_string(up.agent) +
                             ") was killed by SIGKILL; all workers have been ended"));
}

TEST_CASE("Without its sweeper the job ends in order with 125 and the reason") {
  Up up;
  REQUIRE(up.run.signal(up.sweeper, SIGKILL));
  CHECK(up.run.all_gone());
  const auto outcome = up.run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 125);
  CHECK(count(outcome.out, "tidied up\n") == 2);
  CHECK(has(outcome.err, "ddrun's own sweeper (pid " + std::to_string(up.sweeper) + ") was killed"));
}

TEST_CASE("A stopped agent hears of the end of its guard and of signals") {
  {
    Up up;
    REQUIRE(up.run.signal(up.agent, SIGSTOP));
    REQUIRE(up.run.signal(up.guard, SIGKILL));
    CHECK(up.run.all_gone());
    CHECK(up.run.wait().code() == -SIGKILL);
  }
  Up up;
  REQUIRE(up.run.signal(up.agent, SIGSTOP));
  up.run.signal(SIGTERM);
  const auto outcome = up.run.wait();
  CHECK(up.run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == -SIGTERM);
}

TEST_CASE("A job that is stopped as a whole and continued goes on") {
  const TemporaryDirectory dir;
  Run run(job({"-n", "2"}, {"print", "ready", "await", dir.file("go"), "print", "done"}));
  REQUIRE(wait_until([&] { return count(run.out(), "ready\n") == 2; }));
  const auto all = run.living();
  for (const pid_t pid : all) run.signal(pid, SIGSTOP);
  write_file(dir.file("go"), "");
  for (const pid_t pid : all) run.signal(pid, SIGCONT);
  const auto outcome = run.wait();
  CHECK(run.all_gone());
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "done\n") == 2);
}
