// Agents that were started with the others, but come when the job is over.

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

/// A job of two nodes, which both run, in a step of four.
struct TwoOfFour {
  ScriptedJob job{2, 2};
  LinkId a = joins("a");
  LinkId b = joins("b");

  TwoOfFour() { job.opens(); }
  LinkId joins(const std::string& host, std::uint32_t expected = 4) {
    Join join = job.join_of(host);
    join.agents_expected = expected;
    return job.joins(join);
  }
  void succeed() {
    for (const LinkId link : {a, b}) {
      job.succeeds(link);
      job.stops(link);
    }
    REQUIRE(job.coordinator().verdict());
  }
  void members_hang_up() {
    for (const LinkId link : {a, b}) job.breaks(link);
  }
};

}  // namespace

TEST_CASE("a spare that comes when the job is over is told that it is not needed, and then all are done") {
  TwoOfFour t;
  t.succeed();
  t.members_hang_up();
  CHECK_FALSE(t.job.coordinator().done());
  const LinkId c = t.joins("c");
  CHECK(t.job.next<Refused>(c).kind == RefusalKind::not_needed);
  CHECK(t.job.closed(c));
  CHECK_FALSE(t.job.coordinator().done());
  const LinkId d = t.joins("d");
  CHECK(t.job.next<Refused>(d).kind == RefusalKind::not_needed);
  CHECK(t.job.coordinator().done());
  CHECK_FALSE(t.job.coordinator().waits_for_latecomers());
}

TEST_CASE("who does not come is waited for so long and no longer") {
  TwoOfFour t;
  t.succeed();
  t.members_hang_up();
  t.job.wait(Milliseconds{4'999});
  CHECK_FALSE(t.job.coordinator().done());
  t.job.wait(Milliseconds{1});
  CHECK(t.job.coordinator().done());
  CHECK_FALSE(t.job.coordinator().next_deadline());
}

TEST_CASE("nobody is waited for when all that were started have been there") {
  SECTION("in the round or as spares") {
    TwoOfFour t;
    t.joins("c");
    t.joins("d");
    t.succeed();
    CHECK_FALSE(t.job.coordinator().waits_for_latecomers());
    t.members_hang_up();
    CHECK(t.job.coordinator().done());
  }
  SECTION("or were turned away") {
    TwoOfFour t;
    t.joins("c");
    t.job.settings.emplace_back("zebra", "1");
    CHECK(t.job.has<Refused>(t.joins("d")));
    t.succeed();
    t.members_hang_up();
    CHECK(t.job.coordinator().done());
  }
  SECTION("or are gone again") {
    TwoOfFour t;
    t.job.breaks(t.joins("c"));
    t.job.breaks(t.joins("d"));
    t.succeed();
    t.members_hang_up();
    CHECK(t.job.coordinator().done());
  }
  SECTION("or where it is not known how many there are") {
    ScriptedJob job(2, 2);
    const LinkId a = job.joins("a");
    const LinkId b = job.joins("b");
    job.opens();
    for (const LinkId link : {a, b}) {
      job.succeeds(link);
      job.stops(link);
    }
    for (const LinkId link : {a, b}) job.breaks(link);
    CHECK(job.coordinator().done());
  }
}

TEST_CASE("who is late hears of a failure, too") {
  TwoOfFour t;
  t.job.fails(t.b, 2, 7, false);
  for (const LinkId link : {t.a, t.b}) t.job.stops(link);
  t.members_hang_up();
  CHECK_FALSE(t.job.coordinator().done());
  const LinkId c = t.joins("c");
  const auto verdict = t.job.next<VerdictMessage>(c);
  CHECK(verdict.kind == VerdictKind::worker_failed);
  CHECK(verdict.exit_code == 7);
  CHECK(t.job.closed(c));
}

TEST_CASE("when a signal ends the job, or too few came, nobody else is waited for") {
  SECTION("a signal") {
    TwoOfFour t;
    t.job.leaves(t.a, 15);
    for (const LinkId link : {t.a, t.b}) t.job.stops(link);
    REQUIRE(t.job.coordinator().verdict());
    CHECK(t.job.coordinator().verdict()->kind == VerdictKind::stopped_by_signal);
    CHECK_FALSE(t.job.coordinator().waits_for_latecomers());
  }
  SECTION("too few") {
    ScriptedJob job(3, 3, {{"join_timeout_ms", "5000"}});
    Join join = job.join_of("a");
    join.agents_expected = 3;
    const LinkId a = job.joins(join);
    job.wait(Milliseconds{5'000});
    REQUIRE(job.coordinator().verdict());
    job.breaks(a);
    CHECK(job.coordinator().done());
  }
}
