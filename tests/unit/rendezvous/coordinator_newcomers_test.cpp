// Newcomers beside a running round: admitting them restarts all workers, so they are collected.

#include "ddrun/test/catch.hpp"
#include "member_views.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

/// All stopped members reply, and stores are opened, until nothing more follows.
void run_to_idle(ScriptedJob& job) {
  for (bool more = true; more;) {
    more = false;
    for (const auto& member : test::member_views(job.coordinator())) {
      for (const auto& message : job.received(member.link)) {
        if (std::holds_alternative<Stop>(message)) job.stops(member.link);
        else if (const auto* open = std::get_if<Open>(&message)) job.sends(member.link, Opened{open->round, 29500});
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
    run_to_idle(job);
    REQUIRE(job.coordinator().job().round == 1);
    job.forget_all();
  }
  [[nodiscard]] Round round() { return job.coordinator().job().round; }

  ScriptedJob job;
  LinkId a = 0;
};

}  // namespace

TEST_CASE("ten newcomers cost one new round") {
  Running running("5000");
  running.job.wait(Milliseconds{1'000});
  const LinkId first = running.job.joins("b0");
  const Waiting waiting = running.job.next<Waiting>(first);
  CHECK_FALSE(waiting.spare);
  CHECK(waiting.waiting_for == "the round that runs to have lasted 5 s, in case more nodes come (--last-call)");
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
  CHECK(running.job.coordinator().job().budget.used() == 0);
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
