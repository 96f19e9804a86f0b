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
