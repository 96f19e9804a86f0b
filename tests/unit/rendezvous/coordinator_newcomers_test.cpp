// Nodes that come while workers run: each time all start again, so they wait a little for each other, and those that
// only come and go wait longer.

#include <signal.h>

#include <nlohmann/json.hpp>

#include "ddrun/test/catch.hpp"
#include "departures.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

/// All that were told to stop do, and a store is opened if one is wanted, until nothing more follows.
void go_on(ScriptedJob& job) {
  for (bool more = true; more;) {
    more = false;
    for (const auto& member : job.coordinator().members()) {
      for (const auto& message : job.heard(member.link)) {
        if (std::holds_alternative<Stop>(message)) job.stops(member.link);
        else if (const auto* open = std::get_if<Open>(&message)) job.says(member.link, Opened{open->round, 29500});
        else continue;
        more = true;
      }
    }
  }
}

/// One node runs, and others may come.
struct Running {
  explicit Running(const std::string& last_call_ms, int max_nodes = 12)
      : job(1, max_nodes, {{"last_call_ms", last_call_ms}, {"max_restarts", "0"}}) {
    a = job.joins(job.own_join_of("a"));
    job.wait(Milliseconds{std::stoi(last_call_ms)});
    go_on(job);
    REQUIRE(job.coordinator().round() == 1);
    job.forget_all();
  }
  /// An agent joins, and leaves after a time.
  void visit(const std::string& host, Milliseconds time) {
    const LinkId link = job.joins(host);
    go_on(job);
    job.wait(time);
    go_on(job);
    job.leaves(link, SIGTERM);
    go_on(job);
  }
  [[nodiscard]] Round round() { return job.coordinator().round(); }

  ScriptedJob job;
  LinkId a = 0;
};

}  // namespace

TEST_CASE("ten newcomers cost one new round") {
  Running running("5000");
  running.job.wait(Milliseconds{1'000});
  const LinkId first = running.job.joins("b0");
  const Waiting told = running.job.next<Waiting>(first);
  CHECK_FALSE(told.spare);
  CHECK(told.what_for == "the round that runs to have lasted 5 s, in case more nodes come (--last-call)");
  for (int i = 1; i < 10; ++i) {
    running.job.wait(Milliseconds{300});
    running.job.joins("b" + std::to_string(i));
  }
  CHECK(running.round() == 1);
  running.job.wait(Milliseconds{1'299});
  CHECK_FALSE(running.job.has<Stop>(running.a));
  running.job.wait(Milliseconds{1});
  CHECK(running.job.next<Stop>(running.a).why ==
        "b0 (10.0.0.2), b1 (10.0.0.3), b2 (10.0.0.4), b3 (10.0.0.5), b4 (10.0.0.6), 5 more join");
  running.job.stops(running.a);
  running.job.opens();
  CHECK(running.job.next<Start>(running.a).ranks.node_count == 11);
  CHECK(running.round() == 2);
  CHECK(running.job.coordinator().restarts() == 0);
}

TEST_CASE("a round that has lasted a while is stopped for a newcomer at once") {
  Running running("5000");
  running.job.wait(Milliseconds{5'000});
  running.job.joins("b");
  CHECK(running.job.next<Stop>(running.a).why == "b (10.0.0.2) joins");
}

TEST_CASE("whatever the last call, a newcomer waits for half a minute at most") {
  Running running("600000");
  running.job.joins("b");
  running.job.wait(Milliseconds{29'999});
  CHECK_FALSE(running.job.has<Stop>(running.a));
  running.job.wait(Milliseconds{1});
  CHECK(running.job.has<Stop>(running.a));
}

TEST_CASE("a newcomer that waits is in the next round whatever it begins for, and is a spare when some have finished") {
  ScriptedJob job(2, 3, {{"last_call_ms", "5000"}});
  const LinkId a = job.joins(job.own_join_of("a"));
  const LinkId b = job.joins("b");
  job.wait(Milliseconds{5'000});
  job.opens();
  const LinkId c = job.joins("c");
  SECTION("a failure") {
    job.fails(a, 0, 1);
    job.stops(a);
    job.stops(b);
    CHECK(job.node_rank(c) == 2);
  }
  SECTION("a success") {
    job.forget_all();
    job.succeeds(b);
    job.wait(Milliseconds{5'000});
    CHECK_FALSE(job.has<Stop>(a));
    CHECK(job.next<Waiting>(c).spare);
    CHECK_FALSE(job.coordinator().next_deadline() < job.now);
  }
}

TEST_CASE("a node that only comes and goes does not keep the others from their work") {
  // Joins and leaves every 0.8 s, for an hour.
  for (const std::string last_call_ms : {"0", "30000"}) {
    INFO(last_call_ms);
    Running running(last_call_ms);
    for (int i = 0; i < 3600 * 10 / 8; ++i) {
      const LinkId link = running.job.joins("c");
      go_on(running.job);
      running.job.wait(Milliseconds{800});
      running.job.leaves(link, SIGTERM);
      go_on(running.job);
    }
    CHECK(running.round() < 60);
    CHECK(running.job.coordinator().restarts() == 0);
  }
}

TEST_CASE("whose agents come and go is named, waits, and then takes part again") {
  Running running("0");
  running.visit("c", Milliseconds{100});
  running.visit("c", Milliseconds{100});
  CHECK(running.round() == 5);
  const LinkId third = running.job.joins("c");
  go_on(running.job);
  running.job.forget_all();
  running.job.leaves(third, SIGTERM);
  CHECK(running.job.next<Stop>(running.a).why ==
        "stopped by SIGTERM on c (from pid 7); agents of c have come and gone 3 times: the next one waits for 2 s");
  running.job.stops(running.a);
  running.job.stops(third);
  running.job.opens();
  CHECK(running.round() == 7);
  const LinkId fourth = running.job.joins("c");
  const Waiting told = running.job.next<Waiting>(fourth);
  CHECK(told.spare);
  CHECK(told.what_for == "2 s to pass, as agents of c have come and gone 3 times");
  const auto event = nlohmann::json::parse(running.job.events().back());
  CHECK(event == nlohmann::json{{"event", "held"},
                                {"round", 7},
                                {"host", "c"},
                                {"address", "10.0.0.5"},
                                {"node_rank", -1},
                                {"departures", 3},
                                {"wait_ms", 2000}});
  SECTION("others are let in meanwhile, without it") {
    const LinkId d = running.job.joins("d");
    go_on(running.job);
    CHECK(running.round() == 8);
    CHECK(running.job.node_rank(d) >= 0);
    CHECK(running.job.node_rank(fourth) == -1);
  }
  running.job.wait(Milliseconds{2'000});
  go_on(running.job);
  CHECK(running.job.node_rank(fourth) >= 0);
}

TEST_CASE("a node that is needed takes part however often it went") {
  ScriptedJob job(2, 3, {{"last_call_ms", "0"}, {"max_restarts", "99"}, {"fence_ms", "0"}});
  const LinkId a = job.joins(job.own_join_of("a"));
  for (int i = 0; i < 10; ++i) {
    const LinkId b = job.joins("b");
    go_on(job);
    CHECK(job.node_rank(b) >= 0);
    job.breaks(b);
    go_on(job);
  }
  CHECK(job.node_rank(a) == -1);
}

TEST_CASE("departures are counted for each host, and forgotten after a while") {
  using std::chrono::minutes;
  using std::chrono::seconds;
  const auto start = Clock::time_point(std::chrono::hours(1));
  Departures departures;
  CHECK(departures.held_until("a", seconds(30)) < start);
  departures.add("a", start);
  departures.add("a", start);
  CHECK(departures.held_until("a", seconds(30)) < start);
  departures.add("a", start);
  CHECK(departures.of("a") == 3);
  CHECK(departures.held_until("a", seconds(30)) == start + seconds(60));
  CHECK(departures.held_until("a", seconds(0)) == start + seconds(2));
  departures.add("a", start + seconds(1));
  CHECK(departures.held_until("a", seconds(30)) == start + seconds(121));
  for (int i = 0; i < 100; ++i) departures.add("a", start + seconds(2));
  CHECK(departures.held_until("a", seconds(30)) == start + seconds(2) + minutes(5));
  CHECK(departures.of("b") == 0);
  departures.add("b", start + seconds(3) + minutes(10));
  CHECK(departures.of("a") == 0);
  CHECK(departures.of("b") == 1);
}
