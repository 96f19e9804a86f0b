// Events from the coordinator, and messages to it.

#include "ddrun/test/catch.hpp"
#include "machine_walk.hpp"

using namespace ddrun;
using namespace ddrun::agent;
using ddrun::test::stop_with_term;
using ddrun::test::then_stop;
using ddrun::test::Walk;

namespace {

GroupMachine::Rules rules(bool runs_coordinator = false) {
  GroupMachine::Rules rules;
  rules.job_limit = Milliseconds{60'000};
  rules.runs_coordinator = [=] { return runs_coordinator; };
  return rules;
}

/// Two workers run in a round.
Walk running(bool runs_coordinator = false, bool several_machines = false) {
  auto its_rules = rules(runs_coordinator);
  its_rules.several_machines = several_machines;
  Walk walk(its_rules);
  REQUIRE(walk.on(event::Start{}) == "join");
  REQUIRE(walk.machine.state() == GroupState::rendezvous);
  REQUIRE(walk.on(test::round_begins(0)) == "spawn 0");
  walk.on(event::Spawned{});
  REQUIRE(walk.machine.state() == GroupState::running);
  return walk;
}

/// From the stop of the group to its end.
std::string gone(Walk& walk) {
  REQUIRE(walk.on(event::GroupGone{}) == "close");
  return walk.on(event::OutputClosed{});
}

}  // namespace

TEST_CASE("a failure is reported at once, and the coordinator decides what follows") {
  Walk walk = running();
  CHECK(walk.ended(1, Exited{3}) == "send failed 1, " + stop_with_term);
  CHECK(walk.on(test::stop_order()).empty());
  CHECK(walk.ended(0, Exited{4}).empty());
  CHECK(walk.machine.first_failure() == 1);
  CHECK(gone(walk) == "send stopped");
  SECTION("another round, with the number of restarts that the job has had") {
    CHECK(walk.on(test::round_begins(7)) == "spawn 7");
    CHECK(walk.machine.attempt() == 7);
    CHECK_FALSE(walk.machine.first_failure());
  }
  SECTION("the end") { CHECK(walk.on(rendezvous::VerdictMessage{}) == "finish"); }
}

TEST_CASE("a group is stopped for a failure elsewhere") {
  Walk walk = running();
  SECTION("while it runs") { CHECK(walk.on(test::stop_order(SIGINT)) == "signal 2, grace 30000, check"); }
  SECTION("without a signal that matters") { CHECK(walk.on(test::stop_order()) == stop_with_term); }
  CHECK(walk.machine.taking_down());
  CHECK(walk.ended(0, Signaled{SIGTERM, false}).empty());
  CHECK_FALSE(walk.machine.first_failure());
  CHECK(gone(walk) == "send stopped");
  CHECK(walk.on(test::round_begins(1)) == "spawn 1");
}

TEST_CASE("success on this node is not yet success of the job") {
  Walk walk = running();
  CHECK(walk.ended(0, Exited{0}).empty());
  CHECK(walk.ended(1, Exited{0}) == "send succeeded, " + stop_with_term);
  CHECK(gone(walk) == "send stopped");
  CHECK(walk.machine.state() == GroupState::rendezvous);
  SECTION("the others as well") { CHECK(walk.on(rendezvous::VerdictMessage{}) == "finish"); }
  SECTION("another failed, and all start again") {
    CHECK(walk.on(test::stop_order()).empty());
    CHECK(walk.on(test::round_begins(1)) == "spawn 1");
  }
}

TEST_CASE("workers of a node that has lost sight of its coordinator have a shorter grace time") {
  const auto lost = test::stop_order(0, Milliseconds{5'000});
  SECTION("from SIGTERM on") {
    Walk walk = running();
    CHECK(walk.on(lost) == "signal 15, grace 5000, check");
    CHECK(gone(walk) == "send stopped");
    walk.on(test::round_begins(1));
    walk.on(event::Spawned{});
    CHECK(walk.on(test::stop_order()) == stop_with_term);  // the next one has its whole grace
  }
  SECTION("while they are being spawned, whatever is ordered before or after") {
    Walk walk(rules());
    walk.on(event::Start{});
    walk.on(test::round_begins(0));
    SECTION("before") {
      CHECK(walk.on(test::stop_order()) == stop_with_term);
      CHECK(walk.on(lost) == "grace 5000");
    }
    SECTION("after") {
      CHECK(walk.on(lost) == "signal 15, grace 5000, check");
      CHECK(walk.on(test::stop_order()) == "grace 5000");
    }
    CHECK(walk.on(event::Spawned{}).empty());
    CHECK(walk.machine.state() == GroupState::stopping);
  }
  SECTION("also if they are being stopped already") {
    Walk walk = running();
    CHECK(walk.on(test::stop_order()) == stop_with_term);
    CHECK(walk.on(lost) == "grace 5000");
    CHECK(walk.on(event::GraceExpired{}) == "kill, check");
    CHECK(walk.on(lost).empty());
  }
  SECTION("but never a longer one") {
    auto short_grace = rules();
    short_grace.stop = ddrun::test::grace(Milliseconds{2'000});
    Walk walk(short_grace);
    walk.on(event::Start{});
    walk.on(test::round_begins(0));
    walk.on(event::Spawned{});
    CHECK(walk.on(lost) == "signal 15, grace 2000, check");
    CHECK(walk.on(lost).empty());
  }
}

TEST_CASE("on an ending signal a member leaves") {
  SECTION("while its workers run") {
    Walk walk = running();
    CHECK(walk.signal(SIGINT) == "send leave 2, signal 2, grace 30000, check");
    SECTION("and ends by itself") { CHECK(gone(walk) == "send stopped, finish"); }
    SECTION("at once on a second signal") {
      CHECK(walk.signal(SIGINT) == "kill, check");
      CHECK(gone(walk) == "send stopped, finish");
    }
    CHECK(walk.machine.verdict() == Verdict::stopped_by_signal);
    CHECK(walk.machine.ending_signal() == SIGINT);
  }
  SECTION("while it waits") {
    Walk walk(rules());
    walk.on(event::Start{});
    CHECK(walk.signal(SIGTERM) == "send leave 15, finish");
    CHECK(walk.machine.verdict() == Verdict::stopped_by_signal);
  }
  SECTION("after its own workers have succeeded") {
    Walk walk = running();
    walk.ended(0, Exited{0});
    walk.ended(1, Exited{0});
    CHECK(walk.signal(SIGINT) == "send leave 2, kill, check");
    CHECK(gone(walk) == "send stopped, finish");
    CHECK(walk.machine.verdict() == Verdict::stopped_by_signal);
  }
}

TEST_CASE("the agent that runs the coordinator ends last") {
  SECTION("while its workers run") {
    Walk walk = running(true);
    CHECK(walk.signal(SIGINT) == "send leave 2, signal 2, grace 30000, check");
    CHECK(gone(walk) == "send stopped");
    CHECK(walk.machine.state() == GroupState::rendezvous);
    SECTION("once the verdict is known") { CHECK(walk.on(rendezvous::VerdictMessage{}) == "finish"); }
    SECTION("unless a second signal comes") { CHECK(walk.signal(SIGINT) == "finish"); }
  }
  SECTION("while it waits") {
    Walk walk(rules(true));
    walk.on(event::Start{});
    CHECK(walk.signal(SIGTERM) == "send leave 15");
    CHECK(walk.on(rendezvous::VerdictMessage{}) == "finish");
  }
}

TEST_CASE("a lost coordinator is the end") {
  SECTION("while workers run") {
    Walk walk = running();
    CHECK(walk.on(rendezvous::CoordinatorLost{"gone"}) == stop_with_term);
    CHECK(gone(walk) == "send stopped, finish");
    CHECK(walk.machine.verdict() == Verdict::node_lost);
    CHECK(walk.machine.message() == "gone");
  }
  SECTION("but not for one that leaves") {
    Walk walk = running();
    walk.signal(SIGINT);
    CHECK(walk.on(rendezvous::CoordinatorLost{"gone"}).empty());
    CHECK(gone(walk) == "send stopped, finish");
    CHECK(walk.machine.verdict() == Verdict::stopped_by_signal);
  }
  SECTION("nor after the verdict") {
    Walk walk = running();
    CHECK(walk.on(rendezvous::VerdictMessage{}) == stop_with_term);
    CHECK(walk.on(rendezvous::CoordinatorLost{"gone"}).empty());
    CHECK(gone(walk) == "send stopped, finish");
    CHECK(walk.machine.verdict() == Verdict::success);
  }
}

TEST_CASE("an end of the job on this node ends it on all nodes") {
  SECTION("the time limit") {
    Walk walk = running();
    CHECK(walk.on(event::JobTimeout{}) == "send leave 124, stacks 15000, grace 30000");
    CHECK(walk.on(event::StacksRead{}) == then_stop);
    CHECK(gone(walk) == "send stopped");
    CHECK(walk.on(test::round_begins(1)).empty());
    CHECK(walk.on(rendezvous::VerdictMessage{}) == "finish");
  }
  SECTION("processes that cannot be killed") {
    Walk walk = running();
    walk.ended(0, Exited{1});
    walk.grace_expires();
    CHECK(walk.on(event::KillExpired{"pid 7 (sleep)"}) == "send leave 125, close");
  }
}

TEST_CASE("a round that begins while the job ends here is not started, and its stop is answered") {
  // Ctrl-C on the coordinator's machine, or --timeout on any, crosses with START.
  Walk walk(rules(true));
  walk.on(event::Start{});
  std::string told;
  SECTION("after a signal") { told = walk.signal(SIGINT); }
  SECTION("after the time limit") { told = walk.on(event::JobTimeout{}); }
  CHECK(told.starts_with("send "));
  CHECK(walk.on(test::round_begins(0)).empty());
  CHECK(walk.on(test::stop_order(SIGINT)) == "send stopped");
  CHECK(walk.on(test::stop_order(SIGINT)).empty());
  CHECK(walk.on(rendezvous::VerdictMessage{}) == "finish");
}

TEST_CASE("without its guard an agent abandons the job") {
  SECTION("while workers run") {
    Walk walk = running();
    // Other nodes take the end of its connection for the end of its workers, so it comes after that.
    CHECK(walk.on(event::ParentLost{"guard"}) == stop_with_term);
    CHECK(walk.on(event::GraceExpired{}) == "stacks");
    CHECK(walk.on(event::GroupGone{}) == "give up, abandon, close");
    CHECK(walk.on(event::OutputClosed{}) == "send stopped, finish");
  }
  SECTION("while it waits") {
    Walk walk(rules());
    walk.on(event::Start{});
    CHECK(walk.on(event::ParentLost{"guard"}) == "abandon, finish");
  }
}

TEST_CASE("the first success starts the timer of --exit-skew") {
  auto with_skew = rules();
  with_skew.exit_skew = Milliseconds{5'000};
  SECTION("on several nodes") {
    Walk walk(with_skew);
    walk.on(event::Start{});
    walk.on(test::round_begins(0));
    walk.on(event::Spawned{});
    CHECK(walk.ended(0, Exited{0}) == "skew 5000");
    CHECK(walk.on(event::SkewExpired{}) == "send leave 124, stacks 15000, grace 30000");
    CHECK(walk.machine.message() == "local rank 1 still ran 5.0 s after the first worker had ended well (--exit-skew)");
  }
  SECTION("on one node") {
    Walk walk(with_skew, 3);
    walk.on(event::Start{});
    walk.on(test::round_begins(0, true));
    walk.on(event::Spawned{});
    CHECK(walk.ended(2, Exited{0}) == "skew 5000");
    CHECK(walk.ended(0, Exited{0}).empty());
    CHECK(walk.on(event::SkewExpired{}) == "send leave 124, stacks 15000, grace 30000");
    CHECK(walk.on(event::StacksRead{}) == then_stop);
    CHECK(gone(walk) == "send stopped");
    CHECK(walk.machine.verdict() == Verdict::timed_out);
    CHECK(walk.machine.message() == "rank 1 still ran 5.0 s after the first worker had ended well (--exit-skew)");
  }
  SECTION("one that ends before all are spawned") {
    Walk walk(with_skew);
    walk.on(event::Start{});
    walk.on(test::round_begins(0, true));
    CHECK(walk.ended(0, Exited{0}).empty());
    CHECK(walk.on(event::Spawned{}) == "skew 5000");
  }
  SECTION("in time") {
    Walk walk(with_skew);
    walk.on(event::Start{});
    walk.on(test::round_begins(0, true));
    walk.on(event::Spawned{});
    walk.ended(0, Exited{0});
    CHECK(walk.ended(1, Exited{0}) == "send succeeded, " + stop_with_term);
    CHECK(walk.on(event::SkewExpired{}).empty());
    CHECK(gone(walk) == "send stopped");
    CHECK(walk.machine.verdict() == Verdict::success);
  }
}

TEST_CASE("events after the success of the only node change nothing") {
  Walk walk(rules(GENERATE(false, true)));
  walk.on(event::Start{});
  walk.on(test::round_begins(0, true));
  walk.on(event::Spawned{});
  walk.ended(0, Exited{0});
  walk.ended(1, Exited{0});
  SECTION("a signal") { CHECK(walk.signal(SIGTERM).empty()); }
  SECTION("the time limit") { CHECK(walk.on(event::JobTimeout{}).empty()); }
  SECTION("the loss of the guard") { CHECK(walk.on(event::ParentLost{"guard"}).empty()); }
  SECTION("processes that cannot be killed") {
    walk.on(event::GraceExpired{});
    CHECK(walk.on(event::KillExpired{"pid 7 (sleep)"}) == "close");
    CHECK(walk.on(event::OutputClosed{}) == "send stopped");
    return;
  }
  CHECK(gone(walk) == "send stopped");
  CHECK(walk.machine.verdict() == Verdict::success);
}

TEST_CASE("on several machines all are asked where the ranks are before LEAVE") {
  Walk walk = running(false, true);
  SECTION("at the time limit") {
    CHECK(walk.on(event::JobTimeout{}) == "ask for stacks 15000, grace 30000");
    SECTION("until the page is there") {
      CHECK(walk.on(event::StacksRead{}) == "give up, send leave 124, " + stop_with_term);
    }
    SECTION("until another machine's end of the job") {
      CHECK(walk.on(test::stop_order()) == "give up, send leave 124, " + stop_with_term);
    }
    SECTION("until the coordinator is lost") {
      CHECK(walk.on(rendezvous::CoordinatorLost{"gone"}) == "give up, send leave 124, " + stop_with_term);
    }
    SECTION("until a second signal") {
      CHECK(walk.signal(SIGINT).empty());
      CHECK(walk.signal(SIGINT) == "give up, send leave 124, kill, check");
    }
    SECTION("while workers end") {
      CHECK(walk.ended(0, Exited{0}).empty());
      CHECK(walk.ended(1, Exited{0}).empty());
      CHECK(walk.on(event::StacksRead{}) == "give up, send leave 124, " + stop_with_term);
    }
  }
  SECTION("at SIGQUIT") {
    CHECK(walk.signal(SIGQUIT) == "ask for stacks 15000, grace 30000");
    CHECK(walk.on(event::StacksRead{}) == "give up, send leave 3, signal 3, grace 30000, check");
  }
  SECTION("at another signal none is asked") { CHECK(walk.signal(SIGTERM) == "send leave 15, " + stop_with_term); }
}

TEST_CASE("STOP may ask where the ranks are, and only then it waits for them") {
  Walk walk = running(false, true);
  rendezvous::StopOrder order = test::stop_order();
  order.look = 7;
  SECTION("where none has failed") {
    CHECK(walk.on(order) == "stacks of order 7 15000, grace 30000");
    CHECK(walk.on(event::StacksRead{}) == "give up, " + stop_with_term);
  }
  SECTION("where the rank has waited in vain") {
    CHECK(walk.on(event::WorkerEnded{1, Exited{1}, "rank 1 timed out", {"", 1}, 1}) ==
          "send failed 1, stacks of order 0 15000, grace 30000");
    CHECK(walk.on(order) == "answer 7");
    CHECK(walk.ended(0, Exited{1}).empty());
    CHECK(walk.on(event::StacksRead{}) == "give up, " + stop_with_term);
  }
  SECTION("where a rank has failed in another way") {
    CHECK(walk.ended(1, Exited{1}) == "send failed 1, " + stop_with_term);
    CHECK(walk.on(order).empty());
  }
  SECTION("with SIGKILL it does not") {
    order.signal = SIGKILL;
    CHECK(walk.on(order) == "kill, check");
  }
  SECTION("nor from a coordinator that was lost") {
    CHECK(walk.on(order) == "stacks of order 7 15000, grace 30000");
    CHECK(walk.on(test::stop_order(0, Milliseconds{5'000})) == "give up, signal 15, grace 5000, check");
  }
}
