#include "heartbeat.hpp"

#include <map>
#include <set>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;

namespace {

const Clock::time_point start{std::chrono::hours(1)};

}  // namespace

TEST_CASE("without members nothing is due") {
  Heartbeat heartbeat(Milliseconds{1000}, 3);
  CHECK_FALSE(heartbeat.next());
}

TEST_CASE("each member is pinged once per interval, and one that is gone no more") {
  Heartbeat heartbeat(Milliseconds{1000}, 3);
  std::map<LinkId, int> pings;
  for (LinkId link = 1; link <= 100; ++link) heartbeat.add(link, start);
  Clock::time_point now = start;
  while (now < start + std::chrono::seconds(10)) {
    REQUIRE(heartbeat.next());
    REQUIRE(*heartbeat.next() > now);
    now = *heartbeat.next();
    const auto due = heartbeat.due(now, [&](LinkId link) -> std::optional<Clock::time_point> {
      if (link == 7 && now > start + std::chrono::seconds(5)) return std::nullopt;
      return now;
    });
    CHECK(due.silent.empty());
    CHECK(due.ping.size() <= 4);
    for (const LinkId link : due.ping) ++pings[link];
  }
  for (const auto& [link, count] : pings) CHECK(count == (link == 7 ? 5 : 10));
}

TEST_CASE("silence is noticed half an interval after the heartbeat time and not before, whatever the phase") {
  for (int phase = 0; phase < 1000; phase += 37) {
    Heartbeat heartbeat(Milliseconds{1000}, 3);
    const auto last_heard = start + Milliseconds{5000 + phase};
    heartbeat.add(1, start);
    Clock::time_point now = start;
    for (;;) {
      now = *heartbeat.next();
      const auto due = heartbeat.due(now, [&](LinkId) { return std::optional(std::min(now, last_heard)); });
      if (!due.silent.empty()) break;
      REQUIRE(now < start + std::chrono::seconds(60));
    }
    CHECK(now == last_heard + Milliseconds{3500});
  }
}

TEST_CASE("after a suspension all members are pinged at once, and none is lost") {
  Heartbeat heartbeat(Milliseconds{1000}, 3);
  for (LinkId link = 1; link <= 100; ++link) heartbeat.add(link, start);
  const auto awake = start + std::chrono::seconds(10);
  const auto due = heartbeat.due(awake, [](LinkId) { return std::optional(start); });
  CHECK(due.silent.empty());
  CHECK(std::set<LinkId>(due.ping.begin(), due.ping.end()).size() == 100);
  CHECK(due.ping.size() == 100);
  // As usual from there on: a silent member is lost after the limit.
  std::size_t lost = 0;
  while (heartbeat.next() && *heartbeat.next() <= awake + Milliseconds{3500}) {
    lost += heartbeat.due(*heartbeat.next(), [](LinkId) { return std::optional(start); }).silent.size();
  }
  CHECK(lost == 100);
}

TEST_CASE("when all members are gone nothing is due any more, and a new one is found again") {
  Heartbeat heartbeat(Milliseconds{1000}, 3);
  heartbeat.add(1, start);
  const auto at = *heartbeat.next();
  CHECK(heartbeat.due(at, [](LinkId) { return std::optional<Clock::time_point>(); }).ping.empty());
  CHECK_FALSE(heartbeat.next());
  heartbeat.add(2, at + std::chrono::hours(1));
  CHECK(*heartbeat.next() > at + std::chrono::hours(1));
  CHECK(*heartbeat.next() <= at + std::chrono::hours(1) + std::chrono::seconds(1));
}
