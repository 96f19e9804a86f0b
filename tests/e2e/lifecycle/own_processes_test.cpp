#include <signal.h>

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

}  // namespace

TEST_CASE("Without one of its own processes the job ends with the reason") {
  struct Case {
    pid_t Up::*victim;
    int code;
    std::string name, says;
  };
  const auto [victim, code, name, says] =
      GENERATE(Case{&Up::guard, -SIGKILL, "guard", ") was killed"}, Case{&Up::sweeper, 125, "sweeper", ") was killed"},
               Case{&Up::agent, 125, "agent", ") was killed by SIGKILL; all workers have been ended"});
  Up up;
  REQUIRE(up.run.signal(up.*victim, SIGKILL));
  CHECK(up.run.all_gone());
  const auto outcome = up.run.wait();
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == code);
  if (victim != &Up::agent) CHECK(count(outcome.out, "tidied up\n") == 2);
  CHECK(has(outcome.err, "ddrun's own " + name + " (pid " + std::to_string(up.*victim) + says));
}

TEST_CASE("A stopped agent hears of signals") {
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
