#include <signal.h>

#include <chrono>

#include "../job.hpp"

using namespace ddrun::test;

TEST_CASE("A failure restarts all workers with the next restart count and an empty store") {
  for (const char* variable : {"DDRUN_TEST_NOTHING", "DDRUN_NO_PIDFD"}) {
    RunOptions options;
    options.env = {{variable, "1"}};
    const auto outcome = finish(job({"-n", "2", "--max-restarts=3"}, {"env",     "TORCHELASTIC_RESTART_COUNT",
                                                                      "env",     "DDRUN_ROUND",
                                                                      "env",     "TORCHELASTIC_MAX_RESTARTS",
                                                                      "rank",    "0",
                                                                      "count",   "key",
                                                                      ";",       "attempt",
                                                                      "0",       "rank",
                                                                      "1",       "exit",
                                                                      "5",       ";",
                                                                      "forever", ";",
                                                                      "attempt", "1",
                                                                      "rank",    "0",
                                                                      "signal",  "ABRT",
                                                                      ";",       "forever",
                                                                      ";"}),
                                options);
    DDRUN_SHOW(outcome);
    CHECK(outcome.code() == 0);
    // Who has not come to its first line when another fails is stopped; in the last attempt all do.
    for (const char* attempt : {"0", "1"}) {
      CHECK(count(outcome.out, std::string("TORCHELASTIC_RESTART_COUNT=") + attempt + "\n") >= 1);
    }
    CHECK(count(outcome.out, "TORCHELASTIC_RESTART_COUNT=2\n") == 2);
    CHECK(count(outcome.out, "TORCHELASTIC_RESTART_COUNT=3\n") == 0);
    CHECK(count(outcome.out, "DDRUN_ROUND=3\n") == 2);
    CHECK(count(outcome.out, "DDRUN_ROUND=4\n") == 0);
    CHECK(count(outcome.out, "TORCHELASTIC_MAX_RESTARTS=3\n") >= 4);
    // Rank 0 may be stopped before it gets to the store, but in the last attempt it does, and finds it empty.
    CHECK(count(outcome.out, "key=1\n") >= 1);
    CHECK(count(outcome.out, "key=") == count(outcome.out, "key=1\n"));
    CHECK(has(outcome.err, "rank 1 "));
    CHECK(has(outcome.err, "exited with code 5"));
    CHECK(has(outcome.err, "restarting all 2 workers (restart 1 of 3)"));
    CHECK(has(outcome.err, "SIGABRT"));
    CHECK(has(outcome.err, "restarting all 2 workers (restart 2 of 3)"));
    CHECK_FALSE(has(outcome.err, "error:"));
  }
}

TEST_CASE("Restarts older than the window do not count") {
  // Each attempt lives longer than the window: one restart in the window would be one too many, but never is.
  const auto within = finish(job({"--max-restarts=1", "--restart-window=100ms"},
                                 {"attempt", "3", "exit", "0", ";", "spin", "150", "exit", "1"}));
  {
    DDRUN_SHOW(within);
    CHECK(within.code() == 0);
    CHECK(count(within.err, "restarting") == 3);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto outside = finish(job({"--max-restarts=1", "--restart-window=1h", "--restart-backoff=0.2"},
                                  {"attempt", "3", "exit", "0", ";", "exit", "1"}));
  DDRUN_SHOW(outside);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(200));
  CHECK(outside.code() == 1);
  CHECK(count(outside.err, "restarting") == 1);
}

TEST_CASE("A job whose workers cannot start is not restarted until the budget is used up") {
  const Words fails{"error", "ValueError: lr is negative", "fail-file", "ValueError: lr is negative", "exit", "3"};
  const auto outcome = finish(job({"-n", "2", "--max-restarts=9"}, fails));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 3);
  CHECK(count(outcome.err, "; restarting all") == 1);
  CHECK(has(outcome.err,
            "ddrun: not restarting: the workers failed within 1 s of their start twice in a row, with the "
            "same cause: ValueError: lr is negative (8 restarts saved; --same-cause=0 restarts all the "
            "same)\n"));
  CHECK(has(outcome.err, "ddrun: error: rank "));
  const auto all = finish(job({"-n", "2", "--max-restarts=3", "--same-cause=0"}, fails));
  DDRUN_SHOW(all);
  CHECK(count(all.err, "; restarting all") == 3);
  CHECK_FALSE(has(all.err, "not restarting"));
}

TEST_CASE("A restart waits until the group before is gone") {
  const TemporaryDirectory dir;
  const auto outcome = finish(job({"-n", "2", "--max-restarts=1", "--shutdown-timeout=0.2"},
                                  {"attempt",         "0",       "stray", "ignore", "TERM",   "touch",
                                   dir.file("stray"), "forever", ";",     "rank",   "0",      "await",
                                   dir.file("stray"), "exit",    "1",     ";",      "ignore", "TERM",
                                   "forever",         ";",       "print", "again"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(count(outcome.out, "again\n") == 2);
}
