// Members that must not count as lost: an agent with a blocked main thread, a broken connection that is resumed, a long
// message on a slow link, the coordinator's own agent.

#include <algorithm>

#include "ddrun/test/catch.hpp"
#include "member_views.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

/// "a" runs the coordinator; both have workers.
struct RunningPair {
  explicit RunningPair(const ddrun::rendezvous::Settings& changed = {}, int min_nodes = 2)
      : job(min_nodes, 2, changed) {
    a = job.joins(job.own_join_of("a"));
    b = job.joins("b");
    job.opens();
    job.forget_all();
  }
  [[nodiscard]] bool both_run() const {
    const auto members = test::member_views(const_cast<ScriptedJob&>(job).coordinator());
    return members.size() == 2 &&
           std::all_of(members.begin(), members.end(), [](const auto& member) { return member.node_rank >= 0; });
  }
  ScriptedJob job;
  LinkId a = 0;
  LinkId b = 0;
};

}  // namespace

TEST_CASE("an agent that waits for a disk for ten minutes is not lost, and is reported once") {
  RunningPair pair;
  pair.job.stalls(pair.b);
  pair.job.wait(Milliseconds{9'000});
  CHECK_FALSE(pair.job.has<Log>(pair.a));
  pair.job.wait(Milliseconds{591'000});
  CHECK(pair.both_run());
  CHECK(pair.job.next<Log>(pair.a).text.find("b (10.0.0.2, node rank 1) answers, but its ddrun waits") == 0);
  pair.job.unstalls(pair.b);
  pair.job.wait(Milliseconds{2'000});
  CHECK_FALSE(pair.job.has<Log>(pair.a));
  CHECK(pair.job.coordinator().job().budget.used() == 0);
}

TEST_CASE("an agent that waits for a disk as a round ends has the grace time and 30 s") {
  RunningPair pair(ddrun::rendezvous::Settings{{"grace_ms", "1000"}});
  pair.job.stalls(pair.b);
  pair.job.wait(Milliseconds{2'000});
  pair.job.fails(pair.a, 0, 1);
  pair.job.stops(pair.a);
  pair.job.wait(Milliseconds{30'500});
  CHECK(pair.both_run());
  SECTION("it goes on") {
    pair.job.stops(pair.b);
    CHECK(pair.job.coordinator().job().round == 2);
  }
  SECTION("it does not") {
    pair.job.wait(Milliseconds{1'000});
    CHECK(pair.job.next<Refused>(pair.b).kind == RefusalKind::lost);
  }
}

TEST_CASE("a connection that broke has as long as a silent one to be made again") {
  RunningPair pair;
  pair.job.wait(Milliseconds{500});
  pair.job.goes_silent(pair.b);
  pair.job.coordinator().connection_broken(pair.b, "Connection reset by peer");
  pair.job.wait(Milliseconds{1'500});
  CHECK(pair.both_run());
  SECTION("it is") {
    pair.job.coordinator().note_activity(pair.b, pair.job.now);
    pair.job.answers_again(pair.b);
    pair.job.wait(Milliseconds{10'000});
    CHECK(pair.both_run());
  }
  SECTION("it is not") {
    pair.job.wait(Milliseconds{2'000});
    const Stop stop = pair.job.next<Stop>(pair.a);
    CHECK(stop.why.find("b (10.0.0.2, node rank 1) was lost: the connection broke: Connection reset by peer; "
                        "it did not come back within 3 s") == 0);
  }
}

TEST_CASE("a part of a long message is a sign of life") {
  RunningPair pair;
  pair.job.goes_silent(pair.b);
  for (int i = 0; i < 30; ++i) {
    pair.job.wait(Milliseconds{1'000});
    pair.job.coordinator().note_activity(pair.b, pair.job.now);
  }
  CHECK(pair.both_run());
}

TEST_CASE("the coordinator never loses its own agent by silence") {
  RunningPair pair;
  pair.job.goes_silent(pair.a);
  pair.job.wait(Milliseconds{60'000});
  CHECK(pair.both_run());
}

TEST_CASE("a coordinator whose own agent is blocked for too long as a round ends") {
  RunningPair pair({{"grace_ms", "1000"}}, 1);
  pair.job.stalls(pair.a);
  pair.job.wait(Milliseconds{2'000});
  pair.job.fails(pair.b, 2, 1);
  pair.job.stops(pair.b);
  pair.job.wait(Milliseconds{31'500});
  const VerdictMessage verdict = pair.job.next<VerdictMessage>(pair.b);
  CHECK(verdict.kind == VerdictKind::node_lost);
  CHECK(verdict.why.find("a (10.0.0.1, node rank 0) was lost: its workers were not stopped after 31 s") == 0);
}
