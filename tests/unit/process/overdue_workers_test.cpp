// When the sweeper kills the workers of an agent that stands still.

#include "ddrun/process/overdue_workers.hpp"

#include <string>
#include <utility>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::process;
using namespace std::chrono_literals;

namespace {

using Clocks = OverdueWorkers::Clocks;

struct Script {
  /// Time passes on both clocks, and what is due meanwhile is looked at. True: the workers were killed.
  bool pass(std::chrono::nanoseconds time) {
    const auto end = now + time;
    bool kills = look();
    while (!kills && watch.next_look() && *watch.next_look() - behind() <= end) {
      now = std::max(now, *watch.next_look() - behind());
      kills = look();
    }
    now = end;
    return kills;
  }
  bool look() { return watch.look(deadline, {now, now + asleep, state}); }
  void renew() { deadline = {deadline.clock, now + (deadline.clock == Clocks::lead ? asleep : 0s) + 10s, 1s}; }
  [[nodiscard]] std::chrono::nanoseconds behind() const {
    return watch.clock() == Clocks::lead ? asleep : std::chrono::nanoseconds(0);
  }

  OverdueWorkers watch;
  OverdueWorkers::Deadline deadline{Clocks::sight, 110s, 1s};
  std::chrono::nanoseconds now = 100s;    ///< by CLOCK_MONOTONIC
  std::chrono::nanoseconds asleep = 50s;  ///< by which CLOCK_BOOTTIME is ahead
  char state = 'S';
};

}  // namespace

TEST_CASE("workers of a stopped agent are killed a margin after the deadline, once") {
  for (const char state : {'T', 't'}) {
    Script script;
    CHECK_FALSE(script.pass(1s));
    script.state = state;
    CHECK_FALSE(script.pass(9'249ms));
    CHECK(script.pass(1ms));
    CHECK_FALSE(script.pass(1h));
    // It goes on, and its workers of the next round are watched again.
    script.state = 'S';
    script.renew();
    CHECK_FALSE(script.pass(5s));
    script.state = 'T';
    CHECK(script.pass(5'250ms));
    // Others begin before a PONG is confirmed.
    ++script.deadline.group;
    script.state = 'S';
    CHECK_FALSE(script.pass(1s));
    script.state = 'T';
    CHECK(script.pass(1'500ms));
  }
}

TEST_CASE("an agent that renews its deadline costs one look for each deadline, and nothing without workers") {
  Script script;
  int looks = 0;
  for (int second = 0; second < 100; ++second) {
    const auto before = script.watch.next_look();
    CHECK_FALSE(script.pass(1s));
    looks += script.watch.next_look() != before ? 1 : 0;
    script.renew();
  }
  CHECK(looks == 10);
  script.deadline = {};
  CHECK_FALSE(script.pass(1h));
  CHECK_FALSE(script.watch.next_look());
  script.state = 'T';
  CHECK_FALSE(script.pass(1h));
}

TEST_CASE("a deadline that moves to an earlier time is looked at then") {
  Script script;
  CHECK_FALSE(script.pass(1s));
  script.deadline.at -= 5s;
  script.state = 'T';
  CHECK_FALSE(script.pass(4'249ms));
  CHECK(script.pass(1ms));

  // Also if it had passed once, and was renewed.
  Script renewed;
  CHECK_FALSE(renewed.pass(11s));
  renewed.renew();
  CHECK_FALSE(renewed.pass(3s));
  renewed.deadline.at -= 5s;
  renewed.state = 'T';
  CHECK_FALSE(renewed.pass(2'249ms));
  CHECK(renewed.pass(1ms));
}

TEST_CASE("without proof that the agent alone stands still its workers are killed at a second look") {
  for (const char state : {'R', 'S', 'D', 'Z', '?'}) {
    CAPTURE(state);
    Script script;
    script.state = state;
    CHECK_FALSE(script.pass(10'250ms));
    CHECK_FALSE(script.pass(2'499ms));
    const bool renews = GENERATE(false, true);
    if (renews) script.renew();
    CHECK(script.pass(1ms) == !renews);
    CHECK_FALSE(script.pass(1s));
  }
}

TEST_CASE("a look that comes late shows a machine that stood still, whose agent may go on in time") {
  for (const bool goes_on : {true, false}) {
    Script script;
    CHECK_FALSE(script.pass(1s));
    script.now += 1h;    // all of its processes stood still
    script.state = 'T';  // the agent is continued last
    CHECK_FALSE(script.look());
    script.state = 'S';
    CHECK_FALSE(script.pass(2s));
    if (goes_on) script.renew();
    CHECK(script.pass(500ms) == !goes_on);
  }
  // Less than an interval late is a busy machine.
  Script script;
  CHECK_FALSE(script.pass(10s));
  script.state = 'T';
  script.now += 1'200ms;
  CHECK(script.look());
}

TEST_CASE("a lease counts by the clock that goes on while the machine sleeps, and needs no second look") {
  Script script;
  script.deadline = {Clocks::lead, 160s, 1s};
  CHECK_FALSE(script.pass(9s));
  script.asleep += 1h;
  CHECK(script.look());
  CHECK_FALSE(script.pass(1h));
  script.renew();
  CHECK_FALSE(script.pass(10'249ms));
  CHECK(script.pass(1ms));
}

TEST_CASE("a page whose lease is not known yet is waited for, and a change of clocks is seen") {
  OverdueWorkers::Page page;
  CHECK(page.deadline() == OverdueWorkers::Deadline{});
  page.interval_ns = 5;
  page.clock = Clocks::lead;
  CHECK(page.deadline() == OverdueWorkers::Deadline{});
  page.lead_ns = 7;
  page.groups = 2;
  CHECK(page.deadline() == OverdueWorkers::Deadline{Clocks::lead, 7ns, 5ns, 2});
  page.sight_ns = 9;
  page.clock = Clocks::sight;
  CHECK(page.deadline() == OverdueWorkers::Deadline{Clocks::sight, 9ns, 5ns, 2});

  Script script;
  CHECK_FALSE(script.pass(5s));
  script.deadline = {Clocks::lead, 156s, 1s};
  CHECK_FALSE(script.pass(1'249ms));
  CHECK(script.pass(1ms));
}
