// After a loss: the next round waits as long as workers of the lost node may still run.

#include <nlohmann/json.hpp>

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

/// Three running nodes that have sent PONG, of which two are enough; workers have 10 s to end.
struct Fenced {
  explicit Fenced(Settings changed = {}) : job(2, 3, std::move(changed)) {
    a = job.joins(job.own_join_of("a"));
    b = job.joins("b");
    c = job.joins("c");
    job.opens();
    for (const LinkId link : {a, b, c}) job.sends(link, Pong{1});
    job.forget_all();
  }
  void others_stop() {
    job.stops(a);
    job.stops(b);
  }
  [[nodiscard]] Round round() { return job.coordinator().job().round; }

  ScriptedJob job;
  LinkId a = 0;
  LinkId b = 0;
  LinkId c = 0;
};

}  // namespace

TEST_CASE("workers of a silent node have their time to end before the next round") {
  Fenced three;
  three.job.goes_silent(three.c);
  three.job.wait(Milliseconds{3'500});
  REQUIRE(three.job.closed(three.c));
  three.job.wait(Milliseconds{7});  // until they have stopped; the time that is left is rounded
  three.others_stop();
  CHECK(three.round() == 1);
  // It gives up the coordinator within the heartbeat limit and an interval, and then its workers have 5 s.
  const Waiting waiting = three.job.next<Waiting>(three.b);
  CHECK(waiting.waiting_for == "the end of workers that may still run on c (10.0.0.3, node rank 2), for 7 s (--fence)");
  CHECK_FALSE(waiting.spare);
  const auto event = nlohmann::json::parse(three.job.events().back());
  CHECK(event.at("event") == "waiting");
  CHECK(event.at("why") ==
        waiting.waiting_for + ", after c (10.0.0.3, node rank 2) was lost: nothing was heard from it for 3 s");
  three.job.wait(Milliseconds{6'992});
  CHECK(three.round() == 1);
  three.job.wait(Milliseconds{1});
  CHECK(three.round() == 2);
  three.job.opens();
  CHECK(three.job.next<Start>(three.b).ranks.node_count == 2);
}

TEST_CASE("with a shorter grace time the wait is shorter, with a longer one it is not longer") {
  const auto [grace, left] = GENERATE(std::pair{"0", 2'000}, std::pair{"4000", 6'000}, std::pair{"600000", 7'000});
  Fenced three(Settings{{"grace_ms", grace}});
  three.job.goes_silent(three.c);
  three.job.wait(Milliseconds{3'500});
  three.others_stop();
  three.job.wait(Milliseconds{left - 1});
  CHECK(three.round() == 1);
  three.job.wait(Milliseconds{1});
  CHECK(three.round() == 2);
}

TEST_CASE("a node that has sent no PONG has an interval more") {
  ScriptedJob job(1, 2);
  const LinkId a = job.joins(job.own_join_of("a"));
  job.goes_silent(job.joins("b"));
  job.opens();
  job.wait(Milliseconds{3'500});
  job.stops(a);
  job.wait(Milliseconds{7'999});
  CHECK(job.coordinator().job().round == 1);
  job.wait(Milliseconds{1});
  CHECK(job.coordinator().job().round == 2);
}

TEST_CASE("workers of a node with a blocked main thread have as long, from its loss") {
  Fenced three;
  three.job.stalls(three.c);
  three.job.wait(Milliseconds{2'000});
  three.job.fails(three.a, 0, 1);
  three.others_stop();
  for (int i = 0; !three.job.closed(three.c); ++i) {
    REQUIRE(i < 400);
    three.job.wait(Milliseconds{1'000});
  }
  CHECK(three.round() == 1);
  three.job.wait(Milliseconds{9'000});
  CHECK(three.round() == 1);
  three.job.wait(Milliseconds{2'000});
  CHECK(three.round() == 2);
}

TEST_CASE("nothing is waited for where nothing can run any more") {
  SECTION("the connection broke: the agent has ended, and its guard ends the workers") {
    Fenced three;
    three.job.disconnects(three.c);
    three.others_stop();
    CHECK(three.round() == 2);
  }
  SECTION("the node had sent STOPPED") {
    Fenced three;
    three.job.goes_silent(three.c);
    three.job.fails(three.a, 0, 1);
    three.job.stops(three.c);
    three.job.wait(Milliseconds{3'500});
    three.others_stop();
    CHECK(three.round() == 2);
  }
  SECTION("the others took so long to stop") {
    Fenced three;
    three.job.goes_silent(three.c);
    three.job.wait(Milliseconds{10'500});
    three.others_stop();
    CHECK(three.round() == 2);
  }
  SECTION("the round never ran") {
    ScriptedJob job(2, 3, {{"last_call_ms", "0"}});
    job.joins(job.own_join_of("a"));
    const LinkId b = job.joins("b");
    REQUIRE(job.coordinator().job().round == 1);
    job.goes_silent(b);
    job.wait(Milliseconds{3'500});
    job.stops(1);
    job.joins("c");
    CHECK(job.coordinator().job().round == 2);
  }
  SECTION("the job is over") {
    Fenced three(Settings{{"max_restarts", "0"}});
    three.job.goes_silent(three.c);
    three.job.wait(Milliseconds{3'500});
    three.others_stop();
    CHECK(three.job.next<VerdictMessage>(three.a).kind == VerdictKind::node_lost);
  }
}

TEST_CASE("the fence time is configurable") {
  SECTION("not at all") {
    Fenced three(Settings{{"fence_ms", "0"}});
    three.job.goes_silent(three.c);
    three.job.wait(Milliseconds{3'500});
    three.others_stop();
    CHECK(three.round() == 2);
  }
  SECTION("from the last sign of life, whatever is known of the loss") {
    Fenced three(Settings{{"fence_ms", "20000"}});
    three.job.wait(Milliseconds{500});
    const bool broken = GENERATE(true, false);
    Milliseconds left{20'000};
    if (broken) {
      three.job.disconnects(three.c);
    } else {
      three.job.goes_silent(three.c);
      three.job.sends(three.c, Pong{0});
      three.job.wait(Milliseconds{3'500});
      left -= Milliseconds{3'500};
    }
    three.others_stop();
    three.job.wait(left - Milliseconds{1});
    CHECK(three.round() == 1);
    three.job.wait(Milliseconds{1});
    CHECK(three.round() == 2);
  }
}
