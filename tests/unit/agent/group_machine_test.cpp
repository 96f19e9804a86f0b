// Typical sequences of events of a worker group.

#include "group_machine.hpp"

#include "ddrun/test/catch.hpp"
#include "machine_walk.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using ddrun::test::describe;
using ddrun::test::grace;
using ddrun::test::restarts;
using ddrun::test::stop_with_term;
using ddrun::test::then_stop;
using ddrun::test::Walk;

namespace {

/// Walks to `state`; from `stopping` on, after a failure without a restart.
Walk failed_up_to(GroupState state) {
  Walk walk;
  if (state == GroupState::idle) return walk;
  walk.on(event::Start{});
  if (state == GroupState::starting) return walk;
  walk.on(event::Spawned{});
  if (state == GroupState::running) return walk;
  walk.ended(0, Exited{3});
  if (state == GroupState::stopping) return walk;
  if (state == GroupState::killing) walk.grace_expires();
  if (state == GroupState::closing || state == GroupState::finished) walk.on(event::GroupGone{});
  if (state == GroupState::finished) walk.on(event::OutputClosed{});
  REQUIRE(walk.machine.state() == state);
  return walk;
}

/// Walks to `state`, after the success of both workers.
Walk succeeded_up_to(GroupState state) {
  Walk walk;
  walk.run();
  walk.ended(0, Exited{0});
  walk.ended(1, Exited{0});
  if (state == GroupState::killing) walk.on(event::GraceExpired{});
  if (state == GroupState::closing) walk.on(event::GroupGone{});
  REQUIRE(walk.machine.state() == state);
  return walk;
}

void end(Walk& walk) {
  walk.on(event::GroupGone{});
  walk.on(event::OutputClosed{});
  REQUIRE(walk.machine.state() == GroupState::finished);
}

}  // namespace

TEST_CASE("a group that succeeds") {
  Walk walk;
  CHECK(walk.on(event::Start{}) == "spawn 0");
  CHECK(walk.on(event::Spawned{}).empty());
  CHECK(walk.ended(1, Exited{0}).empty());
  CHECK(walk.ended(0, Exited{0}) == stop_with_term);
  CHECK(walk.on(event::GroupGone{}) == "close");
  CHECK(walk.on(event::OutputClosed{}) == "finish");
  CHECK(walk.verdict() == Verdict::success);
  CHECK_FALSE(walk.machine.first_failure());
}

TEST_CASE("a group that fails and has no restart left") {
  Walk walk;
  walk.run();
  CHECK(walk.ended(1, Exited{3}) == stop_with_term);
  CHECK(walk.machine.taking_down());
  CHECK(walk.ended(0, Signaled{SIGTERM, false}).empty());
  CHECK(walk.machine.first_failure() == 1);
  CHECK_FALSE(walk.will_restart());
  end(walk);
  CHECK(walk.verdict() == Verdict::worker_failed);
  CHECK(walk.machine.first_failure() == 1);
}

TEST_CASE("a group that is restarted as often as it may") {
  Walk walk(restarts(2, Milliseconds{100}));
  walk.run();
  for (int attempt = 0; attempt < 2; ++attempt) {
    CHECK(walk.machine.attempt() == attempt);
    CHECK(walk.ended(0, Exited{1}) == stop_with_term);
    CHECK(walk.will_restart());
    CHECK(walk.ended(1, Exited{1}).empty());
    CHECK(walk.on(event::GroupGone{}) == "close");
    CHECK(walk.on(event::OutputClosed{}) == "pause " + std::to_string(100 << attempt));
    CHECK(walk.restarts_used() == attempt + 1);
    CHECK(describe(walk.pause_ends()) == "spawn " + std::to_string(attempt + 1));
    CHECK_FALSE(walk.machine.first_failure());
    walk.on(event::Spawned{});
  }
  CHECK(walk.ended(0, Exited{1}) == stop_with_term);
  CHECK_FALSE(walk.will_restart());
  end(walk);
  CHECK(walk.verdict() == Verdict::worker_failed);
  CHECK(walk.machine.attempt() == 2);
}

TEST_CASE("all workers end before the last was spawned") {
  Walk walk;
  walk.on(event::Start{});
  SECTION("well") {
    walk.ended(0, Exited{0});
    walk.ended(1, Exited{0});
    CHECK(walk.machine.state() == GroupState::starting);
    CHECK(walk.on(event::Spawned{}) == stop_with_term);
    end(walk);
    CHECK(walk.verdict() == Verdict::success);
  }
  SECTION("badly") {
    CHECK(walk.ended(1, Exited{4}) == stop_with_term);
    CHECK(walk.ended(0, Exited{5}).empty());
    CHECK(walk.on(event::Spawned{}).empty());
    CHECK(walk.machine.first_failure() == 1);
    end(walk);
    CHECK(walk.verdict() == Verdict::worker_failed);
  }
}

TEST_CASE("a failure to spawn ends the job without a restart") {
  Walk walk(restarts(5));
  walk.on(event::Start{});
  std::string stop = stop_with_term;
  SECTION("without a failure before") {}
  SECTION("after a worker has failed") {
    CHECK(walk.ended(0, Exited{1}) == stop_with_term);
    stop = "";
  }
  SECTION("after a worker has ended well") { walk.ended(0, Exited{0}); }
  CHECK(walk.on(event::SpawnFailed{"too many processes", 126}) == stop);
  CHECK_FALSE(walk.will_restart());
  CHECK(walk.ended(1, Exited{1}).empty());
  end(walk);
  CHECK(walk.verdict() == Verdict::launcher_failed);
  CHECK(walk.machine.message() == "too many processes");
  CHECK(walk.machine.launcher_code() == 126);
}

TEST_CASE("an ending signal is forwarded and ends the job") {
  Walk walk(restarts(5));
  walk.run();
  CHECK(walk.signal(SIGHUP) == "signal 1, grace 30000, check");
  CHECK(walk.ended(0, Signaled{SIGHUP, false}).empty());
  CHECK(walk.ended(1, Exited{0}).empty());
  end(walk);
  CHECK(walk.verdict() == Verdict::stopped_by_signal);
  CHECK(walk.machine.ending_signal() == SIGHUP);
  CHECK(walk.machine.signal_sender() == "pid 7 (sh)");
}

TEST_CASE("an ending signal after the job has failed for good does not change its verdict") {
  const GroupState state =
      GENERATE(GroupState::stopping, GroupState::killing, GroupState::closing, GroupState::finished);
  CAPTURE(name(state));
  Walk walk = failed_up_to(state);
  walk.signal(SIGTERM);
  walk.signal(SIGTERM);
  if (state != GroupState::finished) end(walk);
  CHECK(walk.verdict() == Verdict::worker_failed);
}

TEST_CASE("an ending signal cancels the restart in each state") {
  Walk walk(restarts(1, Milliseconds{1000}));
  walk.run();
  walk.ended(0, Exited{1});
  bool finished = false;
  SECTION("stopping") { CHECK(walk.signal(SIGTERM) == "signal 15"); }
  SECTION("killing") {
    walk.grace_expires();
    CHECK(walk.signal(SIGTERM).empty());
  }
  SECTION("closing") {
    walk.on(event::GroupGone{});
    CHECK(walk.signal(SIGTERM).empty());
    CHECK_FALSE(walk.will_restart());
    CHECK(walk.on(event::OutputClosed{}) == "finish");
    finished = true;
  }
  SECTION("backing off") {
    walk.on(event::GroupGone{});
    walk.on(event::OutputClosed{});
    CHECK(walk.signal(SIGTERM) == "finish");
    CHECK(walk.pause_ends().empty());
    finished = true;
  }
  if (!finished) end(walk);
  CHECK(walk.verdict() == Verdict::stopped_by_signal);
  CHECK(walk.machine.ending_signal() == SIGTERM);
  CHECK(walk.machine.signal_sender() == "pid 7 (sh)");
}

TEST_CASE("a second ending signal that does not force SIGKILL changes nothing") {
  Walk walk;
  walk.run();
  walk.signal(SIGTERM, false);
  CHECK(walk.signal(SIGHUP, false).empty());
  CHECK(walk.signal(SIGTERM, false).empty());
  CHECK(walk.machine.state() == GroupState::stopping);
  CHECK(walk.machine.ending_signal() == SIGTERM);
  CHECK(walk.signal(SIGTERM, true) == "kill, check");
}

TEST_CASE("the second ending signal kills at once") {
  SECTION("running") {
    Walk walk;
    walk.run();
    walk.signal(SIGTERM);
    CHECK(walk.signal(SIGINT) == "kill, check");
    CHECK(walk.machine.ending_signal() == SIGTERM);
    SECTION("and a third adds nothing") { CHECK(walk.signal(SIGINT).empty()); }
    end(walk);
    CHECK(walk.verdict() == Verdict::stopped_by_signal);
  }
  SECTION("stopping after the time limit") {
    Walk walk;
    walk.run();
    walk.on(event::JobTimeout{});
    CHECK(walk.signal(SIGINT).empty());
    CHECK(walk.signal(SIGINT) == "give up, kill, check");
    end(walk);
    CHECK(walk.verdict() == Verdict::timed_out);
  }
  SECTION("stopping leftovers after a success") {
    Walk walk = succeeded_up_to(GroupState::stopping);
    CHECK(walk.signal(SIGTERM).empty());
    CHECK(walk.signal(SIGTERM) == "kill, check");
    end(walk);
    CHECK(walk.verdict() == Verdict::success);
  }
}

TEST_CASE("the first Ctrl-C kills what workers left behind") {
  Walk walk = succeeded_up_to(GroupState::stopping);
  CHECK(walk.signal(SIGINT) == "kill, check");
  end(walk);
  CHECK(walk.verdict() == Verdict::success);
}

TEST_CASE("the time limit, or a lost parent, ends the job in each state") {
  const bool time_is_up = GENERATE(true, false);
  const Event what = time_is_up ? Event(event::JobTimeout{}) : Event(event::ParentLost{"guard"});
  Walk walk(restarts(3, Milliseconds{1000}));
  SECTION("idle") { CHECK(walk.on(what) == "finish"); }
  SECTION("running") {
    walk.run();
    CHECK(walk.on(what) == (time_is_up ? "stacks 15000, grace 30000" : stop_with_term));
    if (time_is_up) CHECK(walk.on(event::StacksRead{}) == then_stop);
    end(walk);
  }
  SECTION("stopping before a restart") {
    walk.run();
    walk.ended(0, Exited{1});
    CHECK(walk.on(what).empty());
    end(walk);
  }
  SECTION("backing off") {
    walk.run();
    walk.ended(0, Exited{1});
    walk.on(event::GroupGone{});
    walk.on(event::OutputClosed{});
    CHECK(walk.on(what) == "finish");
  }
  CHECK(walk.verdict() == (time_is_up ? Verdict::timed_out : Verdict::launcher_failed));
  if (!time_is_up) CHECK(walk.machine.message() == "guard");
  CHECK_FALSE(walk.will_restart());
}

TEST_CASE("a time limit does not hide that a worker has failed for good") {
  const GroupState state =
      GENERATE(GroupState::stopping, GroupState::killing, GroupState::closing, GroupState::finished);
  CAPTURE(name(state));
  Walk walk = failed_up_to(state);
  CHECK(walk.on(event::JobTimeout{}).empty());
  if (state != GroupState::finished) end(walk);
  CHECK(walk.verdict() == Verdict::worker_failed);
}

TEST_CASE("without a grace time the first signal is SIGKILL") {
  Walk walk({}, grace(Milliseconds{0}));
  walk.run();
  SECTION("failure") { CHECK(walk.ended(0, Exited{1}) == "kill, check"); }
  SECTION("ending signal") { CHECK(walk.signal(SIGTERM) == "kill, check"); }
  SECTION("success with something left behind") {
    walk.ended(0, Exited{0});
    CHECK(walk.ended(1, Exited{0}) == "kill, check");
  }
}

TEST_CASE("no restart beside processes that cannot be killed") {
  Walk walk(restarts(3));
  walk.run();
  walk.ended(0, Exited{1});
  walk.grace_expires();
  CHECK(walk.will_restart());
  CHECK(walk.on(event::KillExpired{"pid 7 (sleep)"}) == "close");
  CHECK_FALSE(walk.will_restart());
  CHECK(walk.ended(1, Signaled{SIGKILL, false}).empty());
  CHECK(walk.on(event::OutputClosed{}) == "finish");
  CHECK(walk.verdict() == Verdict::launcher_failed);
  CHECK(walk.machine.message().find("cannot be killed: pid 7 (sleep);") != std::string::npos);
}

TEST_CASE("processes that cannot be killed do not hide the first failure") {
  Walk walk = failed_up_to(GroupState::killing);
  walk.on(event::KillExpired{"pid 7 (sleep)"});
  walk.on(event::OutputClosed{});
  CHECK(walk.verdict() == Verdict::worker_failed);
}

TEST_CASE("other codes may count as success") {
  RestartPolicy policy;
  policy.success_on = {0, 7};
  Walk walk(policy);
  walk.run();
  walk.ended(0, Exited{7});
  CHECK(walk.ended(1, Exited{0}) == stop_with_term);
  end(walk);
  CHECK(walk.verdict() == Verdict::success);
}

TEST_CASE("success-on without 0 makes 0 a failure and a signal never counts") {
  RestartPolicy policy;
  policy.success_on = {9};
  SECTION("0") {
    Walk walk(policy);
    CHECK(walk.run().ended(0, Exited{0}) == stop_with_term);
    CHECK(walk.machine.first_failure() == 0);
  }
  SECTION("signal 9") {
    Walk walk(policy);
    CHECK(walk.run().ended(0, Signaled{SIGKILL, false}) == stop_with_term);
    CHECK(walk.machine.first_failure() == 0);
  }
}

TEST_CASE("an exit code may forbid the restart") {
  RestartPolicy policy = restarts(3);
  policy.no_restart_on = {2, 9};
  Walk walk(policy);
  walk.run();
  SECTION("the code of the first failure counts") {
    walk.ended(0, Exited{2});
    CHECK_FALSE(walk.will_restart());
    end(walk);
    CHECK(walk.verdict() == Verdict::worker_failed);
  }
  SECTION("not that of others") {
    walk.ended(0, Exited{1});
    walk.ended(1, Exited{2});
    CHECK(walk.will_restart());
  }
  SECTION("nor a signal of the same number") {
    walk.ended(0, Signaled{SIGKILL, false});
    CHECK(walk.will_restart());
  }
}

TEST_CASE("a failure that a rank declares is one at once, whatever counts as success") {
  RestartPolicy policy = restarts(3);
  policy.success_on = {0, 3, 4};
  policy.no_restart_on = {4};
  Walk walk(policy);
  walk.run();
  const int code = GENERATE(3, 4);
  CHECK(walk.on(event::RankFailed{1, {"", 1}, 1, 7, code, "called MPI_Abort"}) == stop_with_term);
  CHECK(walk.machine.first_failure() == 1);
  CHECK(walk.will_restart() == (code == 3));
  CHECK(walk.on(event::RankFailed{0, {"", 0}, 0, 8, 5, "called MPI_Abort(5)"}).empty());
  CHECK(walk.ended(1, Signaled{SIGTERM, false}).empty());
  CHECK(walk.machine.first_failure() == 1);
}

TEST_CASE("stacks are read before a stop that a hang suggests, while workers run") {
  Walk walk;
  walk.run();
  SECTION("SIGQUIT") {
    CHECK(walk.signal(SIGQUIT) == "stacks 15000, grace 30000");
    CHECK(walk.on(event::StacksRead{}) == "give up, signal 3, grace 30000, check");
  }
  SECTION("another signal") { CHECK(walk.signal(SIGINT) == "signal 2, grace 30000, check"); }
  SECTION("a worker that waited in vain") {
    CHECK(walk.on(event::WorkerEnded{1, Exited{1}, "rank 1 timed out"}) == "stacks 15000, grace 30000");
    SECTION("and another one that still runs then") {
      CHECK(walk.on(event::StacksRead{}) == then_stop);
      CHECK(walk.ended(0, Exited{1}).empty());
      CHECK(walk.on(event::GraceExpired{}) == "kill, check");
    }
    SECTION("and the last one, whose end is not held up by the page") {
      CHECK(walk.ended(0, Exited{1}) == then_stop);
      CHECK(walk.on(event::GroupGone{}) == "close");
    }
  }
  SECTION("the last one that waited in vain") {
    walk.ended(0, Exited{0});
    CHECK(walk.on(event::WorkerEnded{1, Exited{1}, "rank 1 timed out"}) == stop_with_term);
  }
  SECTION("the end of the grace time") {
    walk.ended(0, Exited{1});
    CHECK(walk.on(event::GraceExpired{}) == "stacks");
    CHECK(walk.on(event::StacksRead{}) == "give up, kill, check");
  }
  SECTION("the end of the grace time while a stop waits for them") {
    walk.on(event::JobTimeout{});
    CHECK(walk.on(event::GraceExpired{}) == "give up, kill, check");
  }
}

TEST_CASE("a short grace time follows the reading of stacks") {
  Walk walk({}, grace(Milliseconds{200}));
  walk.run();
  CHECK(walk.on(event::JobTimeout{}) == "stacks 1000");
  CHECK(walk.on(event::StacksRead{}) == "give up, signal 15, grace 200, check");
}

TEST_CASE("what is ordered while stacks are read replaces what follows them, or ends the reading") {
  GroupMachine::Rules rules;
  rules.stop = grace(Milliseconds{30'000});
  Walk walk(rules);
  walk.on(event::Start{});
  walk.on(test::round_begins(0));
  walk.on(event::Spawned{});
  const bool before_kill = GENERATE(false, true);
  CAPTURE(before_kill);
  walk.on(before_kill ? Event(test::stop_order()) : Event(event::WorkerEnded{1, Exited{1}, "rank 1 timed out"}));
  if (before_kill) walk.on(event::GraceExpired{});
  REQUIRE(walk.machine.state() == GroupState::looking);
  const std::string at_once = before_kill ? "give up, kill, check" : then_stop;
  SECTION("the coordinator's answer to the failure can wait, and nothing else") {
    if (!before_kill) CHECK(walk.on(test::stop_order()).empty());
    CHECK(walk.on(test::stop_order()) == at_once);
  }
  SECTION("an order by a signal elsewhere") { CHECK(walk.on(test::stop_order(SIGINT)) == at_once); }
  SECTION("an order to kill") { CHECK(walk.on(test::stop_order(SIGKILL)) == "give up, kill, check"); }
  SECTION("an order with a bound, whose grace time counts from here") {
    const std::string soon = before_kill ? at_once : "give up, signal 15, grace 5000, check";
    CHECK(walk.on(test::stop_order(0, Milliseconds{5'000})) == soon);
  }
  SECTION("the verdict") { CHECK(walk.on(rendezvous::VerdictMessage{}) == at_once); }
  SECTION("the loss of the coordinator") { CHECK(walk.on(rendezvous::CoordinatorLost{"gone"}) == at_once); }
  SECTION("the loss of the guard") { CHECK(walk.on(event::ParentLost{"guard"}) == at_once); }
  SECTION("a kill from outside") { CHECK(walk.on(event::WorkersKilled{}) == "give up, kill, check"); }
  SECTION("a signal, and a second one") {
    CHECK(walk.signal(SIGINT) == "send leave 2");
    CHECK(walk.on(test::stop_order(SIGINT)).empty());
    SECTION("at once") { CHECK(walk.signal(SIGINT) == "give up, kill, check"); }
    SECTION("never") {
      const std::string signal = before_kill ? at_once : "give up, signal 2, grace 30000, check";
      CHECK(walk.on(event::StacksRead{}) == signal);
    }
  }
}

TEST_CASE("what precedes the workers is cancelled, and ends before the attempt does") {
  GroupMachine::Rules rules;
  rules.stop = grace(Milliseconds{30'000});
  Walk walk(rules);
  walk.prepares = true;
  walk.on(event::Start{});
  CHECK(walk.on(test::round_begins(0)) == "prepare");
  SECTION("not at all") {
    CHECK(walk.on(event::Prepared{}) == "spawn 0");
    CHECK(walk.machine.state() == GroupState::starting);
  }
  SECTION("by a signal") {
    CHECK(walk.signal(SIGINT) == "send leave 2, cancel 15");
    CHECK(walk.on(test::stop_order(SIGINT)).empty());
    SECTION("and a second one") { CHECK(walk.signal(SIGINT) == "cancel 9"); }
    const bool killed = GENERATE(false, true);
    const Event ended = killed ? Event(event::SpawnFailed{"--before failed"}) : Event(event::Prepared{});
    CHECK(walk.on(ended).ends_with("check"));
    CHECK(walk.machine.verdict() == Verdict::stopped_by_signal);
  }
  SECTION("by a stop elsewhere, of any kind") {
    CHECK(walk.on(test::stop_order()) == "cancel 15");
    SECTION("then by a kill") {
      CHECK(walk.on(test::stop_order(SIGKILL)) == "cancel 9");
      CHECK(walk.on(event::Prepared{}) == "kill, check");
    }
    SECTION("then with a bound") {
      CHECK(walk.on(test::stop_order(0, Milliseconds{5'000})).empty());
      CHECK(walk.on(event::Prepared{}) == "signal 15, grace 5000, check");
    }
  }
  SECTION("by its own failure") {
    CHECK(walk.on(event::SpawnFailed{"--before failed on a", 3}) == "send leave 3, " + stop_with_term);
    CHECK(walk.machine.message() == "--before failed on a");
  }
}

namespace {

/// A main and two services, which are spawned and ready.
Walk with_services(const RestartPolicy& restart = {}) {
  Walk walk(restart, grace(Milliseconds{30'000}), 3, {0, 2});
  CHECK(walk.on(event::Start{}) == "spawn services 0");
  CHECK(walk.on(event::Spawned{Part::services}) == "await ready");
  CHECK(walk.machine.state() == GroupState::serving);
  CHECK(walk.on(event::ServicesReady{}) == "spawn 0");
  CHECK(walk.on(event::Spawned{}).empty());
  CHECK(walk.machine.state() == GroupState::running);
  return walk;
}

}  // namespace

TEST_CASE("the job succeeds when its mains have, however services end then") {
  for (const ExitStatus& status :
       {ExitStatus(Exited{0}), ExitStatus(Exited{3}), ExitStatus(Signaled{SIGKILL, false})}) {
    Walk walk = with_services();
    CHECK(walk.ended(1, Exited{0}) == stop_with_term);
    CHECK(walk.ended(0, status).empty());
    // The end of a service that ignores SIGTERM is not looked at.
    CHECK(walk.on(event::GraceExpired{}) == "kill, check");
    walk.ended(2, Signaled{SIGKILL, false});
    end(walk);
    CHECK(walk.verdict() == Verdict::success);
  }
}

TEST_CASE("Ctrl-C kills the services that are still stopping after a success, and not before") {
  Walk succeeded = with_services();
  succeeded.ended(1, Exited{0});
  CHECK(succeeded.signal(SIGINT) == "kill, check");
  Walk failed = with_services();
  failed.ended(1, Exited{3});
  CHECK(failed.signal(SIGINT) == "signal 2");
  CHECK(failed.signal(SIGINT) == "kill, check");
}

TEST_CASE("a service that fails ends the job, and one that succeeds starts the margin once") {
  Walk walk = with_services(restarts(1));
  CHECK(walk.ended(0, Exited{0}) == "margin 0");
  CHECK(walk.ended(2, Exited{0}).empty());
  CHECK(walk.on(event::RankFailed{0, {"server", 0}, 0, 7, 1, "is a service and exited with code 0"}) == stop_with_term);
  CHECK(walk.machine.first_failure() == 0);
  walk.ended(1, Signaled{SIGTERM, false});
  walk.on(event::GroupGone{});
  CHECK(walk.on(event::OutputClosed{}) == "spawn services 1");
  // A new attempt has a new margin.
  walk.on(event::Spawned{Part::services});
  CHECK(walk.ended(2, Exited{0}) == "margin 2");
  walk.on(event::ServicesReady{});
  walk.on(event::Spawned{});
  CHECK(walk.ended(0, Exited{3}) == stop_with_term);
  CHECK(walk.machine.first_failure() == 0);
}

TEST_CASE("services end the job in each state before the mains run") {
  for (const bool is_ready : {false, true}) {
    Walk walk({}, grace(Milliseconds{30'000}), 2, {0});
    walk.on(event::Start{});
    CHECK(walk.ended(0, Exited{0}) == "margin 0");  // before it was confirmed as spawned
    walk.on(event::Spawned{Part::services});
    if (is_ready) walk.on(event::ServicesReady{});
    CHECK(walk.on(event::RankFailed{0, {"server", 0}, 0, 7, 1, "is a service and exited with code 0"}) ==
          stop_with_term);
    walk.on(event::Spawned{});
    end(walk);
    CHECK(walk.verdict() == Verdict::worker_failed);
  }
}

TEST_CASE("the exit skew counts mains only") {
  GroupMachine::Rules rules;
  rules.exit_skew = Milliseconds{500};
  Walk walk(rules, 4, {3});
  walk.on(event::Start{});
  walk.on(test::round_begins(0, true));
  walk.on(event::Spawned{Part::services});
  walk.on(event::ServicesReady{});
  walk.on(event::Spawned{});
  CHECK(walk.ended(3, Exited{0}) == "margin 3");
  CHECK(walk.ended(0, Exited{0}) == "skew 500");
  walk.on(event::SkewExpired{});
  CHECK(walk.machine.message() == "ranks 1,2 still ran 0.5 s after the first worker had ended well (--exit-skew)");
}
