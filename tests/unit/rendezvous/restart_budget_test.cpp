
#include "ddrun/test/catch.hpp"
#include "frames.hpp"
#include "job_state.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;

namespace {

const Clock::time_point start{std::chrono::hours(1)};

RestartPolicy policy(int restarts, Milliseconds backoff = Milliseconds{0}) {
  RestartPolicy made;
  made.max_restarts = restarts;
  made.backoff = backoff;
  return made;
}

}  // namespace

TEST_CASE("queries use no restart, and spend does") {
  RestartBudget budget(policy(2));
  for (int i = 0; i < 5; ++i) CHECK(budget.any_left(start));
  CHECK(budget.used() == 0);
  budget.spend(start);
  CHECK(budget.any_left(start));
  budget.spend(start);
  CHECK_FALSE(budget.any_left(start + std::chrono::hours(24)));
  CHECK(budget.used() == 2);
}

TEST_CASE("without restarts nothing is allowed") { CHECK_FALSE(RestartBudget(policy(0)).any_left(start)); }

TEST_CASE("the pause doubles up to a minute") {
  RestartBudget budget(policy(1000, Milliseconds{1000}));
  for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60, 60}) CHECK(budget.spend(start) == Milliseconds{1000 * seconds});
  for (int i = 0; i < 100; ++i) CHECK(budget.spend(start) == Milliseconds{60'000});
}

TEST_CASE("no pause stays no pause and one of more than a minute stays as it is") {
  RestartBudget none(policy(5));
  RestartBudget long_one(policy(5, Milliseconds{90'000}));
  for (int i = 0; i < 5; ++i) {
    CHECK(none.spend(start) == Milliseconds{0});
    CHECK(long_one.spend(start) == Milliseconds{90'000});
  }
}

TEST_CASE("within a window only its own restarts count") {
  RestartPolicy windowed = policy(2);
  windowed.window = Milliseconds{10'000};
  RestartBudget budget(windowed);
  budget.spend(start);
  budget.spend(start + Milliseconds{4'000});
  CHECK_FALSE(budget.any_left(start + Milliseconds{9'999}));
  CHECK(budget.any_left(start + Milliseconds{10'000}));
  budget.spend(start + Milliseconds{10'000});
  CHECK_FALSE(budget.any_left(start + Milliseconds{13'999}));
  CHECK(budget.any_left(start + Milliseconds{14'000}));
  CHECK(budget.used() == 3);
}

TEST_CASE("the pause starts anew after a window without a restart") {
  RestartPolicy windowed = policy(100, Milliseconds{1'000});
  windowed.window = Milliseconds{10'000};
  RestartBudget budget(windowed);
  CHECK(budget.spend(start) == Milliseconds{1'000});
  CHECK(budget.spend(start + Milliseconds{5'000}) == Milliseconds{2'000});
  // The window counts from the last restart, not the first.
  CHECK(budget.spend(start + Milliseconds{14'000}) == Milliseconds{4'000});
  CHECK(budget.spend(start + Milliseconds{24'000}) == Milliseconds{1'000});
}

TEST_CASE("the job state fits into a JOIN, whatever has happened") {
  JobState state;
  RestartPolicy often = policy(1'000'000);
  often.window = Milliseconds{86'400'000};
  state.budget = RestartBudget(often);
  for (int i = 0; i < 2'000; ++i) {
    state.budget.spend(start + Milliseconds{i});
    state.failures_of_host["a-host-of-a-large-cluster-" + std::to_string(i)] = 1;
  }
  const auto now = start + Milliseconds{2'000};
  const std::string text = state.serialize(now);
  CHECK(text.size() < max_payload_before_join / 2);
  JobState next;
  next.budget = RestartBudget(often);
  REQUIRE(next.restore(text, now));
  CHECK(next.budget.used() == 2'000);
  CHECK(next.budget.spent(now).ages.size() == 1'000);
  CHECK(next.budget.spent(now).ages.back() == Milliseconds{1});
  CHECK(next.failures_of_host.size() > 100);
}
