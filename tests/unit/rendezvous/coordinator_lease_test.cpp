// A coordinator with a lease: what it does when the lease expires, how it hands over, and when a verdict is sent.

#include <signal.h>

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

/// A coordinator on a, with its agent, and a running round of a, b and c.
struct Leader {
  explicit Leader(int min_nodes = 2, int max_nodes = 3, StepHook on_step = {}) : job(min_nodes, max_nodes) {
    job.options.on_step = std::move(on_step);
    job.options.term = 7;
    job.options.has_lease = true;
    job.options.suspend_timeout = Milliseconds{30'000};
    job.joins(job.own_join_of("a"));
    job.joins("b");
    job.joins("c");
    for (int i = 0; i < 100 && !job.has<Open>(a); ++i) job.wait(Milliseconds{1'000});
    job.opens();
    for (const LinkId link : {a, b, c}) start = job.next<Start>(link);
  }
  void suspend() {
    job.run([](Coordinator& c, Clock::time_point now) { c.suspend(now); });
  }
  void lead(Term term) {
    job.run([term](Coordinator& c, Clock::time_point now) { c.lead(term, now); });
  }
  void recorded() {
    job.run([](Coordinator& c, Clock::time_point now) { c.recorded(now); });
  }
  void all_stop() {
    for (const LinkId link : {a, b, c}) job.stops(link);
  }

  const LinkId a = 1, b = 2, c = 3;
  ScriptedJob job;
  Start start;
};

}  // namespace

TEST_CASE("the claims tell the next coordinator which machine led") {
  const Leader leader;
  CHECK(leader.start.job_state == R"({"coordinator":0,"doublings":0,"restarts":0})");
}

TEST_CASE("without its lease a coordinator lets the round run, and begins no other one") {
  Leader leader;
  auto& job = leader.job;
  leader.suspend();
  CHECK(job.next<Log>(leader.a).text.find("the round that runs goes on") != std::string::npos);
  job.wait(Milliseconds{60'000});
  CHECK_FALSE(job.has<Stop>(leader.b));

  job.fails(leader.b, job.node_rank(leader.b), 1);
  CHECK(job.next<Stop>(leader.b).signal == 0);
  leader.all_stop();
  CHECK_FALSE(job.has<Open>(leader.a));
  CHECK(job.next<Waiting>(leader.b).waiting_for.find("the lease") != std::string::npos);
  SECTION("until it has it again") {
    leader.lead(9);
    job.opens();
    const Start start = job.next<Start>(leader.b);
    CHECK(start.round == 2);
    CHECK(start.term == 9);
  }
  SECTION("and goes once that takes too long") {
    job.wait(Milliseconds{1});
    for (const LinkId link : {leader.a, leader.b, leader.c}) {
      CHECK(job.next<Refused>(link).kind == RefusalKind::lost);  // counted by the next coordinator
      CHECK(job.closed(link));
    }
    CHECK(job.coordinator().stepped_down());
    CHECK(job.coordinator().done());
    const LinkId late = job.joins("d");
    CHECK(job.next<Refused>(late).kind == RefusalKind::moved);
  }
}

TEST_CASE("workers unknown to the next coordinator are killed when the lease and members are lost") {
  Leader leader(1, 3);
  auto& job = leader.job;
  SECTION("the lease first") {
    leader.suspend();
    job.disconnects(leader.c);
    CHECK(job.next<Stop>(leader.a).signal == SIGKILL);
    CHECK(job.next<Stop>(leader.b).signal == SIGKILL);
  }
  SECTION("members first") {
    job.disconnects(leader.c);
    CHECK(job.next<Stop>(leader.a).signal == 0);
    leader.suspend();
    CHECK(job.next<Stop>(leader.a).signal == SIGKILL);
  }
  SECTION("members first, and then all that could go on") {
    job.disconnects(leader.c);
    CHECK(job.next<Stop>(leader.a).another_round);
    job.sends(leader.b, Leave{LeaveKind::time_is_up, 124, "the time is up"});
    leader.suspend();
    const Stop stop = job.next<Stop>(leader.a);
    CHECK_FALSE(stop.another_round);
    CHECK(stop.why.find("restarting") == std::string::npos);
  }
  SECTION("but not for a worker that failed") {
    leader.suspend();
    job.fails(leader.b, 1, 1);
    CHECK(job.next<Stop>(leader.a).signal == 0);
  }
}

TEST_CASE("a member that had finished is missed without the lease: it may go on with another coordinator") {
  Leader leader(1, 3);
  auto& job = leader.job;
  job.succeeds(leader.c);
  job.stops(leader.c);
  SECTION("the lease first") {
    leader.suspend();
    job.disconnects(leader.c);
  }
  SECTION("the member first") {
    job.disconnects(leader.c);
    CHECK_FALSE(job.has<Stop>(leader.a));
    leader.suspend();
  }
  CHECK(job.next<Stop>(leader.a).signal == SIGKILL);
  CHECK(job.next<Stop>(leader.b).signal == SIGKILL);
  leader.lead(9);
  CHECK(job.next<Refused>(leader.b).kind == RefusalKind::lost);
}

TEST_CASE("workers that have their grace as one failed lose it with a member and the lease") {
  Leader leader(1, 3);
  auto& job = leader.job;
  job.fails(leader.b, 1, 1);
  CHECK(job.next<Stop>(leader.a).signal == 0);
  const bool has_stopped = GENERATE(false, true);
  if (has_stopped) job.stops(leader.c);
  SECTION("the lease first") {
    leader.suspend();
    CHECK_FALSE(job.has<Stop>(leader.a));
    job.disconnects(leader.c);
  }
  SECTION("the member first") {
    job.disconnects(leader.c);
    leader.suspend();
  }
  CHECK(job.next<Stop>(leader.a).signal == SIGKILL);
  CHECK_FALSE(job.has<Stop>(leader.a));
  job.disconnects(leader.b);
  CHECK_FALSE(job.has<Stop>(leader.a));  // not repeated
}

TEST_CASE("no newcomer stops a round that no other one can follow") {
  Leader leader(1, 4);
  leader.suspend();
  leader.job.joins("d");
  leader.job.wait(Milliseconds{60'000});
  CHECK_FALSE(leader.job.has<Stop>(leader.b));
  leader.lead(8);
  leader.job.wait(Milliseconds{1});
  CHECK(leader.job.has<Stop>(leader.b));
}

TEST_CASE("another machine leads: members look for it") {
  Leader leader;
  leader.suspend();
  leader.job.run([](Coordinator& c, Clock::time_point now) { c.step_down("another machine leads", now); });
  for (const LinkId link : {leader.a, leader.b, leader.c}) {
    const Refused refused = leader.job.next<Refused>(link);
    CHECK(refused.kind == RefusalKind::moved);
    CHECK(refused.why == "another machine leads");
  }
  CHECK(leader.job.events().back().find(R"("event":"moved")") != std::string::npos);
}

TEST_CASE("a restart that no START has carried is counted by the next coordinator") {
  Leader leader;
  auto& job = leader.job;
  SECTION("a worker failed, and workers are being stopped") { job.fails(leader.b, 1, 1); }
  SECTION("they are stopped, and the lease is over") {
    leader.suspend();
    job.fails(leader.b, 1, 1);
    leader.all_stop();
  }
  SECTION("a member was lost, and the lease is over") {
    leader.suspend();
    job.disconnects(leader.c);
  }
  job.run([](Coordinator& c, Clock::time_point now) { c.step_down("another machine leads", now); });
  CHECK(job.next<Refused>(leader.b).kind == RefusalKind::lost);
}

TEST_CASE("the agent of the coordinator's machine leaves, and the job goes on under another one") {
  SECTION("in a round: once its workers are stopped") {
    Leader leader;
    auto& job = leader.job;
    job.leaves(leader.a, SIGTERM);
    CHECK(job.next<Stop>(leader.b).another_round);
    job.stops(leader.b);
    job.stops(leader.c);
    CHECK_FALSE(job.coordinator().stepped_down());
    job.stops(leader.a);
    CHECK(job.coordinator().stepped_down());
    for (const LinkId link : {leader.b, leader.c}) CHECK(job.next<Refused>(link).kind == RefusalKind::moved);
    CHECK(job.next<Refused>(leader.a).kind == RefusalKind::permanent);
    CHECK_FALSE(job.coordinator().job().verdict);
  }
  SECTION("a restart that was decided before is paid for by the next one") {
    Leader leader;
    auto& job = leader.job;
    job.fails(leader.b, 1, 1);
    job.leaves(leader.a, SIGTERM);
    leader.all_stop();
    CHECK(job.next<Refused>(leader.b).kind == RefusalKind::lost);
  }
  SECTION("between two rounds: at once") {
    Leader leader;
    auto& job = leader.job;
    leader.suspend();
    SECTION("with a restart that is not announced yet") {
      job.fails(leader.b, 1, 1);
      leader.all_stop();
      job.leaves(leader.a, SIGTERM);
      CHECK(job.next<Refused>(leader.b).kind == RefusalKind::lost);
    }
    SECTION("as one of them has left") {
      job.leaves(leader.c, SIGTERM);
      leader.all_stop();
      job.leaves(leader.a, SIGTERM);
      CHECK(job.next<Refused>(leader.b).kind == RefusalKind::moved);
    }
  }
  SECTION("with too few others a job of fixed size ends") {
    Leader leader(3, 3);
    auto& job = leader.job;
    job.leaves(leader.a, SIGTERM);
    CHECK_FALSE(job.next<Stop>(leader.b).another_round);
    leader.all_stop();
    leader.recorded();
    CHECK(job.next<VerdictMessage>(leader.b).kind == VerdictKind::stopped_by_signal);
  }
}

TEST_CASE("a coordinator whose own agent waits for a disk for too long hands the job over") {
  Leader leader;
  auto& job = leader.job;
  job.stalls(leader.a);
  job.wait(Milliseconds{2'000});
  job.fails(leader.b, 1, 1);
  job.stops(leader.b);
  job.stops(leader.c);
  CHECK(job.next<Stop>(leader.a).signal == 0);
  job.wait(Milliseconds{360'000});
  // The next coordinator does not wait for them.
  const Stop stop = job.next<Stop>(leader.a);
  CHECK(stop.signal == SIGKILL);
  CHECK(stop.another_round);
  for (const LinkId link : {leader.b, leader.c}) {
    const Refused refused = job.next<Refused>(link);
    CHECK(refused.kind == RefusalKind::lost);  // counted by the next coordinator
    CHECK(refused.why.find("leads no more: its workers were not stopped after ") != std::string::npos);
  }
  CHECK(job.coordinator().stepped_down());
  CHECK_FALSE(job.coordinator().job().verdict);
}

TEST_CASE("a coordinator whose own agent is lost hands the job to another one, without a verdict") {
  Leader leader;
  auto& job = leader.job;
  SECTION("in a round") {}
  SECTION("as workers are being stopped") { job.fails(leader.b, 1, 1); }
  job.disconnects(leader.a);
  CHECK(job.next<Refused>(leader.b).kind == RefusalKind::lost);
  CHECK(job.next<Refused>(leader.c).kind == RefusalKind::lost);
  CHECK(job.coordinator().stepped_down());
  CHECK_FALSE(job.coordinator().take_verdict_to_record());
}

TEST_CASE("what the agent of the coordinator's machine cannot do, another one's may") {
  Leader leader;
  auto& job = leader.job;
  job.sends(leader.a, Leave{LeaveKind::cannot_go_on, 127, "./train is not there"});
  CHECK(job.next<Stop>(leader.b).another_round);
  leader.all_stop();
  CHECK(job.next<VerdictMessage>(leader.a).exit_code == 127);
  CHECK(job.next<Refused>(leader.b).kind == RefusalKind::lost);
  CHECK(job.coordinator().stepped_down());
}

TEST_CASE("a verdict is sent once it is recorded") {
  Leader leader;
  auto& job = leader.job;
  for (const LinkId link : {leader.a, leader.b, leader.c}) job.succeeds(link);
  leader.all_stop();
  const auto verdict = job.coordinator().take_verdict_to_record();
  REQUIRE(verdict);
  CHECK(verdict->kind == VerdictKind::success);
  CHECK_FALSE(job.coordinator().take_verdict_to_record());
  CHECK_FALSE(job.has<VerdictMessage>(leader.b));
  CHECK_FALSE(job.coordinator().done());
  SECTION("and not before") {
    job.wait(Milliseconds{29'000});  // agents answer pings
    CHECK_FALSE(job.has<VerdictMessage>(leader.b));
    leader.recorded();
    for (const LinkId link : {leader.a, leader.b, leader.c}) {
      CHECK(job.next<VerdictMessage>(link).kind == VerdictKind::success);
    }
  }
  SECTION("an agent that joins meanwhile gets it, too") {
    const LinkId late = job.joins("d");
    CHECK(job.has<Waiting>(late));
    leader.recorded();
    CHECK(job.next<Refused>(late).kind == RefusalKind::not_needed);
  }
  SECTION("with a new lease it is to be recorded again") {
    leader.suspend();
    leader.lead(8);
    CHECK(job.coordinator().take_verdict_to_record());
  }
  SECTION("one that cannot be is left to the next coordinator, whose members claim that all went well") {
    job.wait(Milliseconds{30'000});
    for (const LinkId link : {leader.a, leader.b, leader.c}) {
      const Refused refused = job.next<Refused>(link);
      CHECK(refused.kind == RefusalKind::moved);
      CHECK(refused.why.find("leads no more: the verdict could not be recorded for 30 s") != std::string::npos);
    }
  }
  SECTION("a lease that does not come back leaves it to the next coordinator") {
    leader.suspend();
    job.wait(Milliseconds{29'000});
    CHECK_FALSE(job.coordinator().stepped_down());
    job.wait(Milliseconds{1'500});
    for (const LinkId link : {leader.a, leader.b, leader.c}) {
      CHECK(job.next<Refused>(link).kind == RefusalKind::moved);
      CHECK_FALSE(job.has<VerdictMessage>(link));
    }
  }
}

TEST_CASE("a coordinator with a new lease but missing members cannot know what happened meanwhile") {
  // Lost members may have continued under a coordinator of a term in between, whose rounds are unknown here.
  Leader leader(1, 3);
  auto& job = leader.job;
  SECTION("they were lost without the lease") {
    leader.suspend();
    job.disconnects(leader.c);
    job.stops(leader.a);
    job.stops(leader.b);
  }
  SECTION("or before it was over") {
    job.disconnects(leader.c);
    leader.suspend();
    job.stops(leader.a);
    job.stops(leader.b);
  }
  SECTION("or its workers are being stopped") {
    leader.suspend();
    job.disconnects(leader.c);
  }
  leader.lead(9);
  for (const LinkId link : {leader.a, leader.b}) {
    CHECK_FALSE(job.has<Open>(link));
    CHECK(job.next<Refused>(link).kind == RefusalKind::lost);  // counted by the next coordinator
  }
  CHECK(job.coordinator().stepped_down());
}

TEST_CASE("the next coordinator waits for all but the machine of the one before, which has no workers any more") {
  Leader leader;
  ScriptedJob after(2, 3);
  after.options.term = 9;
  after.options.has_lease = true;
  after.options.host = "b";
  const auto claims = [&](const char* host, int node_rank) {
    Join join = after.join_of(host);
    join.claim = {7, 1, node_rank, 3, leader.start.job_state, false, false};
    return after.joins(join);
  };
  SECTION("the others are enough") {
    claims("b", 1);
    CHECK(after.coordinator().job().round == 0);
    claims("c", 2);
    CHECK(after.coordinator().job().round == 2);
  }
  SECTION("another one may still have workers") {
    claims("a", 0);
    claims("c", 2);
    CHECK(after.coordinator().job().round == 0);
  }
}

TEST_CASE("a coordinator with a lease whose step the order lacks steps down, and the next one counts a restart") {
  std::string state;
  Leader leader(2, 3, [&](std::string_view, std::string_view next, bool) { return next != state; });
  state = GENERATE("stopping", "gathering");
  leader.job.fails(leader.b, leader.job.node_rank(leader.b), 1);
  if (state == "gathering") leader.all_stop();
  for (const LinkId link : {leader.a, leader.b, leader.c}) {
    const auto refused = leader.job.next<Refused>(link);
    CHECK(refused.kind == RefusalKind::lost);
    CHECK(refused.why.starts_with("the coordinator on a took a wrong step, "));
  }
  CHECK(leader.job.coordinator().stepped_down());
}
