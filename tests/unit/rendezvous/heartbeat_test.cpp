#include "heartbeat.hpp"

#include <map>

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

TEST_CASE("silence is noticed at the heartbeat time and not before, whatever the phase") {
  for (int phase = 0; phase < 1000; phase += 37) {
    Heartbeat heartbeat(Milliseconds{1000}, 3);
    const auto heard = start + Milliseconds{5000 + phase};
    heartbeat.add(1, start);
    Clock::time_point now = start;
    for (;;) {
      now = *heartbeat.next();
      const auto due = heartbeat.due(now, [&](LinkId) { return std::optional(std::min(now, heard)); });
      if (!due.silent.empty()) break;
      REQUIRE(now < start + std::chrono::seconds(60));
    }
    CHECK(now == heard + Milliseconds{3000});
  }
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
