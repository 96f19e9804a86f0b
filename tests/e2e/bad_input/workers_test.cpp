#include "../job.hpp"

using namespace ddrun::test;

TEST_CASE("A worker that ends before the others have started is the cause") {
  const auto outcome = finish(job({"-n", "200"}, {"rank", "0", "exit", "7", ";", "forever"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 7);
  CHECK(has(outcome.err, "ddrun: error: rank 0 exited with code 7"));
  CHECK(has(outcome.err, "stopped by ddrun"));
}

TEST_CASE("A worker that closes its output is watched to its end") {
  const auto good = finish(job({"-n", "2"}, {"print", "before", "close-out", "spin", "50", "exit", "0"}));
  {
    DDRUN_SHOW(good);
    CHECK(good.code() == 0);
    CHECK(count(good.out, "before\n") == 2);
  }
  const auto bad = finish(job({"-n", "2"}, {"close-out", "rank", "1", "exit", "4", ";", "forever"}));
  DDRUN_SHOW(bad);
  CHECK(bad.code() == 4);
  CHECK(has(bad.err, "rank 1 exited with code 4"));
}

TEST_CASE("A worker that closes its output does not keep a restart waiting") {
  const auto outcome = finish(job({"-n", "2", "--max-restarts=1"}, {"close-out", "attempt", "0", "exit", "4", ";"}));
  DDRUN_SHOW(outcome);
  CHECK(outcome.code() == 0);
  CHECK(has(outcome.err, "restarting all 2 workers (restart 1 of 1)"));
}
