// Agents that leave, abort, or run out of time.

#include <signal.h>

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

/// Three running nodes, a runs the coordinator.
struct Three {
  explicit Three(int min_nodes, ddrun::rendezvous::Settings changed = {}) : job(min_nodes, 3, std::move(changed)) {
    Join own = job.own_join_of("a");
    a = job.joins(own);
    b = job.joins("b");
    c = job.joins("c");
    job.opens();
    job.forget_all();
  }
  ScriptedJob job;
  LinkId a = 0;
  LinkId b = 0;
  LinkId c = 0;
};

}  // namespace

TEST_CASE("an elastic job continues without a node that leaves, at no restart") {
  Three three(2, {{"max_restarts", "0"}});
  three.job.leaves(three.c, SIGINT);
  CHECK(three.job.next<Stop>(three.a) == Stop{1, true, "stopped by SIGINT on c (from pid 7)", 0});
  for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link);
  CHECK(three.job.next<Refused>(three.c).why == "left the job after SIGINT");
  CHECK(three.job.closed(three.c));
  CHECK(three.job.coordinator().job().round == 2);
  CHECK(three.job.coordinator().job().budget.used() == 0);
}

TEST_CASE("an agent that leaves and closes at once has left all the same") {
  // START crosses LEAVE: the agent has no workers, and does not wait for a reply.
  Three three(2, {{"max_restarts", "0"}});
  three.job.leaves(three.c, SIGINT);
  three.job.disconnects(three.c, "connection closed");
  for (const LinkId link : {three.a, three.b}) three.job.stops(link);
  CHECK_FALSE(three.job.coordinator().job().verdict);
  CHECK(three.job.coordinator().job().round == 2);
  CHECK(three.job.coordinator().job().budget.used() == 0);
}

TEST_CASE("a job of a fixed size ends when one of it leaves and no spare is there") {
  for (const bool spare : {false, true}) {
    Three three(3);
    if (spare) three.job.joins("d");
    three.job.leaves(three.b, SIGTERM);
    const Stop stop = three.job.next<Stop>(three.a);
    CHECK(stop.another_round == spare);
    CHECK(stop.signal == (spare ? 0 : SIGTERM));
    for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link);
    CHECK(three.job.coordinator().job().verdict.has_value() != spare);
    if (spare) continue;
    const VerdictMessage verdict = three.job.next<VerdictMessage>(three.c);
    CHECK(verdict.kind == VerdictKind::stopped_by_signal);
    CHECK(verdict.exit_code == 143);
    CHECK(verdict.signal == SIGTERM);
    CHECK(verdict.host == "b");
    CHECK(verdict == three.job.next<VerdictMessage>(three.b));
  }
}

TEST_CASE("the job ends when the agent that runs its coordinator leaves") {
  Three three(1);
  three.job.leaves(three.a, SIGHUP);
  for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link);
  CHECK(three.job.next<VerdictMessage>(three.b).exit_code == 128 + SIGHUP);
}

TEST_CASE("too few after a leave wait for a newcomer") {
  Three three(3 - 1);
  three.job.leaves(three.b, SIGINT);
  three.job.leaves(three.c, SIGINT);
  for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link);
  CHECK(three.job.coordinator().job().round == 1);
  CHECK(three.job.next<Waiting>(three.a).waiting_for == "1 more node");  // STOP had the reason
  three.job.joins("d");
  CHECK(three.job.coordinator().job().round == 2);
}

TEST_CASE("when all leave the job ends at once") {
  ScriptedJob job(1, 2);
  const LinkId a = job.joins("a");
  const LinkId b = job.joins("b");
  job.opens();
  job.leaves(a, SIGTERM);
  job.leaves(b, SIGTERM);
  job.stops(a);
  job.stops(b);
  CHECK(job.next<VerdictMessage>(b).exit_code == 143);
}

TEST_CASE("a waiting agent may leave at any time") {
  ScriptedJob job(3, 3);
  job.joins("a");
  const LinkId b = job.joins("b");
  job.leaves(b, SIGINT);
  CHECK(job.has<Refused>(b));
  CHECK(job.closed(b));
  CHECK_FALSE(job.coordinator().job().verdict);
  job.leaves(1, SIGINT);
  CHECK(job.coordinator().job().verdict);
  CHECK_FALSE(job.coordinator().done());
  job.disconnects(1, "closed");
  CHECK(job.coordinator().done());
}

TEST_CASE("a node that has finished may leave without harm") {
  Three three(3);
  three.job.succeeds(three.c);
  three.job.stops(three.c);
  three.job.leaves(three.c, SIGINT);
  CHECK(three.job.has<Refused>(three.c));
  CHECK(three.job.received(three.a).size() == 0);
  for (const LinkId link : {three.a, three.b}) {
    three.job.succeeds(link);
    three.job.stops(link);
  }
  CHECK(three.job.next<VerdictMessage>(three.a).kind == VerdictKind::success);
}

TEST_CASE("an agent that cannot go on ends a job of fixed size, and one that is out of time any job") {
  struct Row {
    Leave leave;
    VerdictKind kind;
    int exit_code;
  };
  const std::vector<Row> rows = {
      {{LeaveKind::cannot_go_on, 125, "the disk is full"}, VerdictKind::launcher_failed, 125},
      {{LeaveKind::cannot_go_on, 127, "the disk is full"}, VerdictKind::launcher_failed, 127},
      {{LeaveKind::cannot_go_on, 0, "the disk is full"}, VerdictKind::launcher_failed, 125},
      {{LeaveKind::time_is_up, 124, "the disk is full"}, VerdictKind::timed_out, 124},
      {{LeaveKind::skewed, 0, "the disk is full"}, VerdictKind::timed_out, 124},
  };
  for (const Row& row : rows) {
    Three three(row.kind == VerdictKind::launcher_failed ? 3 : 1);
    three.job.sends(three.b, row.leave);
    for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link, "details of " + std::to_string(link));
    const VerdictMessage verdict = three.job.next<VerdictMessage>(three.c);
    CHECK(verdict.kind == row.kind);
    CHECK(verdict.exit_code == row.exit_code);
    CHECK(verdict.why == "b: the disk is full");
    CHECK(verdict.cause == "details of 2");
  }
}

TEST_CASE("of an elastic job an agent that cannot go on is a lost node, once its workers are gone") {
  const Leave leave{LeaveKind::cannot_go_on, 127, "no such program"};
  SECTION("while workers run") {
    Three three(2, {{"max_restarts", "1"}});
    three.job.sends(three.c, leave);
    CHECK(three.job.next<Stop>(three.a) ==
          Stop{1, true, "c (10.0.0.3, node rank 2) was lost: no such program; restarting all workers (restart 1 of 1)",
               0});
    three.job.stops(three.a);
    three.job.stops(three.b);
    CHECK(three.job.coordinator().job().round == 1);  // its workers may still run
    three.job.stops(three.c);
    CHECK(three.job.coordinator().job().round == 2);
    CHECK(three.job.coordinator().job().budget.used() == 1);
    const VerdictMessage own = three.job.next<VerdictMessage>(three.c);
    CHECK(own.kind == VerdictKind::launcher_failed);
    CHECK(own.exit_code == 127);
    CHECK(own.why == "c: no such program");
    CHECK(three.job.closed(three.c));
    CHECK_FALSE(three.job.coordinator().job().verdict);
  }
  SECTION("while the round ends for a restart already") {
    Three three(2);
    three.job.fails(three.c, 4, 1);
    three.job.sends(three.c, leave);
    for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link);
    CHECK(three.job.coordinator().job().round == 2);
    CHECK(three.job.coordinator().job().budget.used() == 1);
    CHECK(three.job.closed(three.c));
  }
  SECTION("while the round ends for a newcomer, which used up nothing until then") {
    Three three(2);
    three.job.leaves(three.b, SIGTERM);
    three.job.sends(three.c, leave);
    for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link);
    CHECK(three.job.coordinator().job().budget.used() == 1);
    CHECK(three.job.next<Waiting>(three.a).waiting_for.starts_with(
        "1 more node, after c (10.0.0.3, node rank 2) was lost"));
  }
  SECTION("before a round") {
    ScriptedJob job(2, 3);
    job.joins("a");
    const LinkId b = job.joins("b");
    job.sends(b, leave);
    CHECK(job.closed(b));
    CHECK_FALSE(job.coordinator().job().verdict);
  }
  SECTION("where its store cannot be opened") {
    ScriptedJob job(2, 3, {{"last_call_ms", "0"}});
    const LinkId a = job.joins("a");
    const LinkId b = job.joins("b");
    job.sends(a, leave);
    job.stops(a);
    CHECK(job.closed(a));
    CHECK(job.coordinator().job().budget.used() == 0);
    job.joins("c");
    CHECK(job.node_rank(b) >= 0);
  }
  SECTION("but where a spare can take its place, a fixed size is no reason to end") {
    Three three(3);
    const LinkId d = three.job.joins("d");
    three.job.sends(three.c, leave);
    for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link);
    CHECK(three.job.node_rank(d) == 2);
  }
}

TEST_CASE("what an agent cannot do ends the job where the others cannot go on without it") {
  const Leave leave{LeaveKind::cannot_go_on, 127, "no such program"};
  const auto end_reason = [](Three& three) {
    for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link);
    return three.job.next<VerdictMessage>(three.b).why;
  };
  SECTION("it runs the coordinator") {
    Three three(1);
    three.job.sends(three.a, leave);
    CHECK(end_reason(three) == "a: no such program");
  }
  SECTION("no restart is left") {
    Three three(1, {{"max_restarts", "0"}});
    three.job.sends(three.c, leave);
    CHECK(end_reason(three) == "c: no such program");
  }
  SECTION("it is the only one") {
    ScriptedJob job(1, 3);
    const LinkId a = job.joins("a");
    job.sends(a, leave);
    CHECK(job.next<VerdictMessage>(a).why == "a: no such program");
  }
}

TEST_CASE("an abort wins over a restart that is under way") {
  Three three(3);
  three.job.fails(three.b, 2, 1);
  three.job.sends(three.c, Leave{LeaveKind::time_is_up, 124, "too late"});
  for (const LinkId link : {three.a, three.b, three.c}) three.job.stops(link);
  CHECK(three.job.next<VerdictMessage>(three.a).kind == VerdictKind::timed_out);
}

TEST_CASE("a spare that cannot go on is only lost itself") {
  Three three(3);
  const LinkId spare = three.job.joins("d");
  three.job.sends(spare, Leave{LeaveKind::cannot_go_on, 125, "no memory"});
  CHECK(three.job.closed(spare));
  CHECK(three.job.received(three.a).empty());
}

TEST_CASE("nodes that still run long after the first has finished end the job") {
  Three three(3, {{"exit_skew_ms", "5000"}});
  three.job.wait(Milliseconds{60'000});
  three.job.succeeds(three.b);
  three.job.stops(three.b);
  three.job.wait(Milliseconds{4'999});
  CHECK_FALSE(three.job.has<Stop>(three.a));
  three.job.wait(Milliseconds{1});
  for (const LinkId link : {three.a, three.c}) three.job.stops(link);
  const VerdictMessage verdict = three.job.next<VerdictMessage>(three.b);
  CHECK(verdict.kind == VerdictKind::timed_out);
  CHECK(verdict.exit_code == 124);
  CHECK(verdict.why == "workers on a, c still ran 5 s after the first node had finished (--exit-skew)");
}

TEST_CASE("the exit skew of one round does not reach into the next") {
  Three three(3, {{"exit_skew_ms", "5000"}});
  three.job.succeeds(three.b);
  three.job.stops(three.b);
  three.job.fails(three.c, 4, 1);
  three.job.stops(three.a);
  three.job.stops(three.c);
  three.job.opens();
  three.job.wait(Milliseconds{100'000});
  CHECK_FALSE(three.job.coordinator().job().verdict);
}
