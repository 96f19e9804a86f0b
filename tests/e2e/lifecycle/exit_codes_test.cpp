#include "../job.hpp"

using namespace ddrun::test;

namespace {

/// Every case with pidfds and without.
template <class Check>
void both_ways(const Words& argv, Check check) {
  for (const bool pidfd : {true, false}) {
    RunOptions options;
    if (!pidfd) options.env.emplace_back("DDRUN_NO_PIDFD", "1");
    const auto outcome = finish(argv, options);
    DDRUN_SHOW(outcome);
    INFO((pidfd ? "with pidfd" : "without pidfd"));
    check(outcome);
  }
}

}  // namespace

TEST_CASE("Success is silent and 0") {
  both_ways(job({"-n", "4"}, {"exit", "0"}), [](const Outcome& outcome) {
    CHECK(outcome.code() == 0);
    CHECK(outcome.out.empty());
    CHECK(outcome.err.empty());
  });
}

TEST_CASE("The exit code is that of the worker that failed first") {
  both_ways(job({"-n", "4"}, {"rank", "2", "exit", "17", ";", "on", "TERM", "33", "forever"}),
            [](const Outcome& outcome) {
              CHECK(outcome.code() == 17);
              CHECK(has(outcome.err, "ddrun: error: rank 2 exited with code 17 after "));
              CHECK(last_line(outcome.err) == "  others:  ranks 0,1,3 stopped by ddrun");
            });
}

TEST_CASE("A worker ended by a signal gives 128 and its number and the signal has a name") {
  both_ways(job({"-n", "2"}, {"rank", "1", "signal", "SEGV", ";", "forever"}), [](const Outcome& outcome) {
    CHECK(outcome.code() == 139);
    CHECK(has(outcome.err, "ddrun: error: rank 1 was killed by SIGSEGV"));
  });
}

TEST_CASE("Exit code 9 and SIGKILL never look alike") {
  both_ways(job({}, {"exit", "9"}), [](const Outcome& outcome) {
    CHECK(outcome.code() == 9);
    CHECK(has(outcome.err, "rank 0 exited with code 9 after"));
  });
  both_ways(job({}, {"signal", "KILL"}), [](const Outcome& outcome) {
    CHECK(outcome.code() == 137);
    CHECK(has(outcome.err, "rank 0 was killed by SIGKILL after"));
  });
  both_ways(job({}, {"exit", "137"}), [](const Outcome& outcome) {
    CHECK(outcome.code() == 137);
    CHECK(has(outcome.err, "rank 0 exited with code 137 after"));
  });
}

TEST_CASE("The time limit of the job gives 124") {
  both_ways(job({"-n", "2", "--timeout=0.2"}, {"forever"}), [](const Outcome& outcome) {
    CHECK(outcome.code() == 124);
    CHECK(has(outcome.err, "ddrun: error: stopped after 0.2 s, the limit set with --timeout"));
    CHECK(last_line(outcome.err) == "  workers: ranks 0,1 stopped by ddrun");
  });
}

TEST_CASE("Codes that count as success are chosen") {
  both_ways(job({"-n", "2", "--success-on=0,3"}, {"rank", "1", "exit", "3", ";", "exit", "0"}),
            [](const Outcome& outcome) {
              CHECK(outcome.code() == 0);
              CHECK(outcome.err.empty());
            });
  both_ways(job({"--success-on=3"}, {"exit", "0"}), [](const Outcome& outcome) {
    CHECK(outcome.code() == 1);
    CHECK(has(outcome.err, "rank 0 exited with code 0"));
  });
}

TEST_CASE("Wrong usage is 2 and a program that cannot run 126 or 127") {
  both_ways(command({"--no-such-option", "true"}), [](const Outcome& outcome) { CHECK(outcome.code() == 2); });
  both_ways(command({"/etc/passwd"}), [](const Outcome& outcome) { CHECK(outcome.code() == 126); });
  both_ways(command({"/no/such/program"}), [](const Outcome& outcome) { CHECK(outcome.code() == 127); });
}
