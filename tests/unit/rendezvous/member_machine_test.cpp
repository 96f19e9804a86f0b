// A member with each event given by the test; whole jobs are in failover_test.cpp.

#include "member_machine.hpp"

#include <signal.h>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace std::chrono_literals;
namespace event = ddrun::rendezvous::member_event;

namespace {

using Lines = std::vector<std::string>;

/// An action in a few words.
struct Describe {
  std::string operator()(const FromAgent& message) const {
    const auto* stopped = std::get_if<Stopped>(&message);
    return stopped != nullptr ? concat("send STOPPED ", stopped->round) : "send";
  }
  std::string operator()(const ToAgent& what) const { return std::visit(*this, what); }
  std::string operator()(const RoundBegins& begins) const { return concat("begin ", begins.round); }
  std::string operator()(const StopOrder& stop) const { return concat("stop with ", stop.signal); }
  std::string operator()(const VerdictMessage& verdict) const {
    return concat("verdict ", static_cast<int>(verdict.kind), ", exit ", verdict.exit_code,
                  verdict.why.empty() ? "" : ": ", verdict.why);
  }
  std::string operator()(const CoordinatorLost& lost) const { return concat("lost: ", lost.why); }
  std::string operator()(const Log& log) const { return log.text; }
  std::string operator()(const Waiting& /*waiting*/) const { return "waiting"; }
  std::string operator()(const member_action::Dial& dial) const {
    return concat("dial ", dial.is_here ? "here" : dial.address);
  }
  std::string operator()(const member_action::Hang& /*order*/) const { return "hang"; }
  std::string operator()(const member_action::BoundWorkers& /*order*/) const { return "bound workers"; }
  std::string operator()(const member_action::CloseLink& /*order*/) const { return "close link"; }
  std::string operator()(const member_action::StartServer& start) const { return concat("start ", start.server); }
  std::string operator()(const member_action::Suspend& /*order*/) const { return "suspend"; }
  std::string operator()(const member_action::StepDown& /*order*/) const { return "step down"; }
  std::string operator()(const member_action::Campaign& /*order*/) const { return "campaign"; }
  std::string operator()(const member_action::Resign& resign) const { return resign.answers ? "resign!" : "resign"; }
  std::string operator()(const member_action::Depose& depose) const { return concat("depose ", depose.term); }
  std::string operator()(const member_action::Record& /*order*/) const { return "record"; }
  std::string operator()(const member_action::CloseStore& /*order*/) const { return "close store"; }
  std::string operator()(const member_action::Done& /*order*/) const { return "done"; }
  template <class Other>
  std::string operator()(const Other&) const {
    return "other";
  }
};

MemberOptions options_for(bool has_lease, int min_nodes = 2) {
  MemberOptions options;
  if (has_lease) options.spec.lease = "program";
  options.spec.min_nodes = min_nodes;
  options.spec.max_nodes = 2;
  options.run_id = "job";
  options.new_agent_id = [] { return "id"; };
  return options;
}

struct Script {
  explicit Script(MemberOptions options) : machine(std::move(options)) {}
  /// With a lease, and begun.
  explicit Script(int min_nodes = 2) : Script(options_for(true, min_nodes)) { on(event::Begin{}); }

  Lines on(const MemberEvent& event) {
    Lines log;
    for (const auto& action : machine.step(event, now)) log.push_back(std::visit(Describe{}, action));
    return log;
  }
  Lines hears(const FromCoordinator& message) { return on(message); }
  Lines says(const FromAgent& message) { return on(message); }
  Lines told(const lease::Tell& what) { return on(what); }
  Lines leader(Term term, const std::string& address) { return told(lease::Leader{term, address, address.empty()}); }
  Lines welcome(Term term = 0) { return hears(Welcome{"b", 1000, 3, "", term}); }
  Lines start() { return hears(Start{1, {}, 2, ""}); }
  Lines loss(bool unreachable = true) { return on(LinkLoss{{Errc::connection_lost, "it broke"}, unreachable}); }
  Lines wait(Milliseconds time) {
    Lines log;
    const auto end = now + time;
    while (machine.next_deadline() && *machine.next_deadline() <= end) {
      now = *machine.next_deadline();
      for (auto& line : on(event::TimeIsUp{})) log.push_back(std::move(line));
    }
    now = end;
    return log;
  }
  /// A member of the coordinator on b, in term 2.
  Script& member() {
    leader(2, "b:1");
    welcome(2);
    return *this;
  }
  /// The coordinator of term 2 runs here, and is dialled.
  Script& leads() {
    CHECK(leader(2, "") == Lines{"start 1"});
    CHECK(on(event::ServerStarted{}) == Lines{"campaign", "dial here"});
    return *this;
  }

  Clock::time_point now{1h};
  MemberMachine machine;
};

}  // namespace

TEST_CASE("workers beside a lost coordinator are killed, and others are stopped with grace over an open link") {
  Script own;
  own.leads().welcome(2);
  own.start();
  CHECK(own.loss() == Lines{"step down", "resign", "close store", "campaign", "stop with 9"});
  Script other;
  other.member().start();
  CHECK(other.loss() == Lines{"close store", "campaign", "stop with 0"});
  CHECK(other.says(Stopped{1}) == Lines{"hang", "dial b:1"});
  other.welcome(2);
  other.start();
  other.loss();
  CHECK(other.leader(3, "") == Lines{"start 1"});
  const Lines lost = other.on(event::ServerFailed{{Errc::unavailable, "no port"}});
  CHECK(lost == Lines{"resign!", "lost: it broke; then no port"});
}

TEST_CASE("a lost coordinator that may still run leaves workers little time, though its job is over here") {
  Script script(options_for(false));
  script.on(event::Begin{});
  script.welcome();
  script.start();
  const bool has_ended = GENERATE(false, true);
  const Lines log = script.on(LinkLoss{{Errc::protocol, "what it sends is unknown"}, false, has_ended});
  CHECK(log ==
        (has_ended ? Lines{"lost: what it sends is unknown"} : Lines{"stop with 0", "lost: what it sends is unknown"}));
}

TEST_CASE("a leader that listens no longer is deposed, unless it could go on alone") {
  const int min_nodes = GENERATE(1, 2);
  Script script(min_nodes);
  script.leader(2, "b:1");
  CHECK(script.on(event::NotListening{}).empty());  // it has not served this node
  script.welcome(2);
  CHECK(script.on(event::NotListening{}).empty());
  script.loss();
  CHECK(script.on(event::NotListening{}) == (min_nodes == 1 ? Lines{} : Lines{"depose 2"}));
}

TEST_CASE("a leader whose address is none of a coordinator is named, and not dialled") {
  Script script;
  const std::string why = "what holds the job's lease is another program: 'hello' is no address of a coordinator";
  CHECK(script.leader(2, "hello") == Lines{why});
  CHECK(script.wait(1h).back() == "lost: no machine has taken the lead of the job in time: " + why);
  Script other;
  other.leader(2, "hello");
  CHECK(other.leader(3, "hello,b:1") == Lines{"dial hello,b:1"});
}

TEST_CASE("a member that gets the lease gives it back") {
  Script script;
  CHECK(script.leader(2, "b:1") == Lines{"dial b:1"});
  CHECK(script.welcome(2) == Lines{"resign"});
  CHECK(script.leader(3, "") == Lines{"resign"});
}

TEST_CASE("a node whose coordinator has stepped down searches for the next one") {
  Script script;
  script.leads();
  CHECK(script.on(event::ServerSteppedDown{2}).empty());
  CHECK(script.on(event::ServerSteppedDown{1}) == Lines{"resign!", "hang", "campaign"});
  CHECK(script.machine.state() == MemberState::searching);
  CHECK(script.leader(3, "b:1") == Lines{"dial b:1"});
}

TEST_CASE("a claim has the success of the workers until the next round") {
  Script script;
  script.member().start();
  script.says(Succeeded{1});
  CHECK(script.machine.claim().succeeded);
  script.says(Stopped{1});
  script.hears(Start{2, {}, 2, ""});
  CHECK_FALSE(script.machine.claim().succeeded);
}

TEST_CASE("a leader records its verdict again, and pauses without the lease") {
  Script script;
  script.leads().welcome(2);
  CHECK(script.on(event::Recorded{{}, false}).empty());
  CHECK(script.wait(499ms).empty());
  CHECK(script.wait(1ms) == Lines{"record"});
  CHECK(script.told(lease::tell::Lost{"it is gone"}) == Lines{"suspend"});
  script.on(event::Recorded{{}, false});
  CHECK(script.wait(10s).empty());
}

TEST_CASE("another leader ends the coordinator here, and the part in a round of the former one") {
  Script own;
  own.leads().welcome(2);
  CHECK(own.leader(3, "b:1") == Lines{"step down"});
  Script waiting;
  waiting.member();
  CHECK(waiting.leader(3, "b:1").empty());  // the same coordinator
  CHECK(waiting.leader(4, "c:1").empty());
  CHECK(waiting.wait(999ms).empty());
  CHECK(waiting.wait(1ms) == Lines{"close store", "campaign", "hang",
                                   "another machine leads the job, in term 4; looking for the next coordinator",
                                   "dial c:1"});
  Script in_round;
  in_round.member().start();
  in_round.leader(3, "c:1");
  CHECK(in_round.wait(249ms).empty());
  CHECK(in_round.wait(1ms) == Lines{"bound workers", "close store", "campaign", "stop with 0"});
  CHECK(in_round.says(Stopped{1}) == Lines{"hang", "dial c:1"});
}

TEST_CASE("a machine that led gives the lease back before it ends") {
  Script script;
  const bool has_led = GENERATE(false, true);
  if (has_led) script.leads().welcome(2);
  else script.member();
  CHECK(script.on(event::Close{}) == Lines{"close link"});
  if (has_led) {
    CHECK(script.on(event::LinkClosed{}).empty());
    CHECK(script.on(event::ServerDone{1}) == Lines{"resign!"});
    CHECK(script.on(event::Resigned{}) == Lines{"other", "done"});
  } else {
    CHECK(script.on(event::LinkClosed{}) == Lines{"other", "done"});
  }
}

TEST_CASE("without a lease a machine that may run the coordinator tries again until there is one") {
  MemberOptions options = options_for(false);
  options.may_run_server = true;
  Script script(options);
  CHECK(script.on(event::Prepare{}) == Lines{"start 1"});
  CHECK(script.on(event::ServerFailed{{Errc::unavailable, "in use"}}).empty());
  CHECK(script.on(event::Begin{}) == Lines{"dial "});
  CHECK(script.on(event::Retry{"no answer"}) == Lines{"start 2"});
  script.on(event::ServerFailed{{Errc::unavailable, "in use"}});
  CHECK(script.on(event::Located{true}) == Lines{"start 3"});
  script.on(event::ServerFailed{{Errc::unavailable, "in use"}});
  script.welcome();
  CHECK(script.loss().back() == "dial ");
  // It may still run.
  CHECK(script.on(event::Retry{"no answer"}).empty());
  CHECK(script.on(event::Located{true}).empty());
  CHECK(script.on(event::Located{fail(Errc::unavailable, "no port")}).empty());
}

TEST_CASE("a machine that may not run the coordinator only looks where it is now") {
  MemberOptions options = options_for(false);
  options.is_explicit = GENERATE(false, true);
  Script script(options);
  CHECK(script.on(event::Prepare{}).empty());
  script.on(event::Begin{});
  CHECK(script.on(event::Retry{"no answer"}).empty());
  CHECK(script.wait(2s) == Lines{"no answer; trying for 10 min 0 s"});
  CHECK(script.on(event::Located{false}).empty());
  CHECK(script.on(event::Located{true}) == (options.is_explicit ? Lines{} : Lines{"start 1"}));
  const Lines lost = script.on(event::Located{fail(Errc::unavailable, "no port")});
  CHECK(lost == (options.is_explicit ? Lines{} : Lines{"hang", "lost: no port"}));
}

TEST_CASE("a node that was not needed has succeeded, unless the job may have been another one") {
  MemberOptions options = options_for(false);
  const bool is_named = GENERATE(false, true);
  const bool has_run = GENERATE(false, true);
  options.run_id = is_named ? "job" : "none";
  Script script(options);
  script.on(event::Begin{});
  script.welcome();
  if (has_run) script.start();
  const Lines log = script.hears(Refused{RefusalKind::not_needed, "all are there"});
  const std::string what = "this node was not needed: all are there";
  if (is_named || has_run) CHECK(log == Lines{what, "verdict 0, exit 0"});
  else
    CHECK(log == Lines{concat("verdict 4, exit 125: ", what,
                              ", and nothing has run here; a job with a name (--rdzv-id) takes "
                              "that for success")});
}

TEST_CASE("a node that has to end before the job began ends at once") {
  Script script;
  SECTION("by a signal") {
    CHECK(script.says(Leave{LeaveKind::signalled, SIGINT, "pid 7"}) ==
          Lines{"verdict 3, exit 130: stopped by SIGINT from pid 7 before the job began"});
  }
  SECTION("by its time limit") {
    CHECK(script.says(Leave{LeaveKind::time_is_up, 124, "the time is over"}) ==
          Lines{"verdict 2, exit 124: the time is over, before the job began"});
  }
  CHECK(script.leader(2, "b:1").empty());
}

TEST_CASE("a node that had to end does not join again once its coordinator is lost") {
  Script script;
  script.member().start();
  CHECK(script.says(Leave{LeaveKind::cannot_go_on, 125, "the disk is full"}) == Lines{"send"});
  script.loss();
  CHECK(script.says(Stopped{1}) ==
        Lines{"hang", "verdict 4, exit 125: the disk is full, while this node was not part of it"});
}

TEST_CASE("a wait is explained once, if it lasts") {
  MemberOptions options = options_for(false);
  SECTION("on several machines") {
    Script script(options);
    script.on(event::Begin{});
    script.welcome();
    CHECK(script.hears(Waiting{1, 2, 2, false, "another node"}).empty());
    CHECK(script.wait(1'999ms).empty());
    CHECK(script.wait(1ms) == Lines{"waiting for another node; 1 of 2 is there"});
    CHECK(script.wait(1h).empty());
    CHECK(script.hears(Waiting{3, 1, 2, true, "a place"}) == Lines{"this node is a spare and waits for a place"});
    script.hears(Waiting{2, 1, 3, false, "the last call"});
    script.start();
    CHECK(script.wait(1h).empty());
  }
  SECTION("on one machine, by the agent") {
    options.spec.max_nodes = 1;
    Script script(options);
    script.on(event::Begin{});
    script.welcome();
    CHECK(script.hears(Waiting{1, 1, 1, false, "the end of the pause"}) == Lines{"waiting"});
  }
}

TEST_CASE("STOP of a round that never started is answered without the agent") {
  Script script;
  script.member();
  CHECK(script.hears(Stop{1, true, "b was lost"}) == Lines{"send STOPPED 1"});
  CHECK(script.hears(Stop{1, false, "b was lost"}).empty());  // once
  script.hears(Start{2, {}, 2, ""});
  CHECK(script.hears(Stop{2, true, "b was lost", 2}) == Lines{"stop with 2"});
}

TEST_CASE("STOP of a round of this number under the coordinator before is answered without the agent") {
  Script script;
  script.member().start();
  script.loss();
  script.says(Stopped{1});
  script.welcome(3);
  CHECK(script.hears(Open{1, "", {}}) == Lines{"other"});
  CHECK(script.hears(Stop{1, true, "b was lost"}) == Lines{"send STOPPED 1"});
}

TEST_CASE("what comes twice, too early or too late is passed over") {
  Script script;
  const auto all_of_a_round = [&] {
    return GENERATE(FromCoordinator(Open{1, "", {}}), FromCoordinator(Start{1, {}, 2, ""}), FromCoordinator(Log{}),
                    FromCoordinator(Waiting{}), FromCoordinator(PassSignal{1, SIGUSR1}),
                    FromCoordinator(Exchanged{1, 0, 0, {""}, true}), FromCoordinator(Stop{1, true, "b was lost"}));
  };
  SECTION("before WELCOME") {
    script.leader(2, "b:1");
    CHECK(script.hears(all_of_a_round()).empty());
    CHECK(script.machine.state() == MemberState::joining);
  }
  SECTION("in a round") {
    script.member().start();
    CHECK(script.welcome(2).empty());
    CHECK(script
              .hears(GENERATE(FromCoordinator(Open{2, "", {}}), FromCoordinator(Start{1, {}, 2, ""}),
                              FromCoordinator(Start{2, {}, 2, ""}), FromCoordinator(Stop{2, true, "b was lost"})))
              .empty());
    CHECK(script.machine.state() == MemberState::in_round);
    CHECK(script.says(Stopped{1}) == Lines{"send STOPPED 1"});
  }
  SECTION("after a round") {
    script.member().start();
    script.says(Stopped{1});
    CHECK(script.says(Stopped{1}).empty());
    CHECK(script
              .hears(GENERATE(FromCoordinator(Open{1, "", {}}), FromCoordinator(Start{1, {}, 2, ""}),
                              FromCoordinator(PassSignal{1, SIGUSR1}), FromCoordinator(Exchanged{1, 0, 0, {""}, true})))
              .empty());
    CHECK(script.machine.state() == MemberState::waiting);
  }
  SECTION("after the end") {
    script.says(Leave{LeaveKind::signalled, SIGINT, ""});
    CHECK(script.on(event::Begin{}).empty());
    CHECK(script.hears(all_of_a_round()).empty());
    CHECK(script.machine.state() == MemberState::over);
  }
}

TEST_CASE("a member whose step the order lacks leaves the job, and what it would have done is left out") {
  const std::string state = GENERATE("searching", "joining", "waiting", "in_round", "rejoining", "over", "closing");
  MemberOptions options = options_for(true);
  options.host = "here";
  options.on_step = [&](std::string_view, std::string_view next, bool) { return next != state; };
  Script script(options);
  Lines reasons;
  const auto step = [&](const MemberEvent& event) {
    const auto actions = script.machine.step(event, script.now);
    for (const auto& action : actions) {
      const auto* message = std::get_if<FromAgent>(&action);
      const auto* leave = message != nullptr ? std::get_if<Leave>(message) : nullptr;
      if (leave != nullptr && leave->kind == LeaveKind::cannot_go_on) reasons.push_back(leave->text);
      const auto* told = std::get_if<ToAgent>(&action);
      const auto* verdict = told != nullptr ? std::get_if<VerdictMessage>(told) : nullptr;
      if (verdict != nullptr && verdict->kind == VerdictKind::launcher_failed) reasons.push_back(verdict->why);
      if (!reasons.empty() || std::holds_alternative<member_action::Done>(action)) CHECK(actions.size() <= 2);
    }
    return !reasons.empty();
  };
  CAPTURE(state);
  RankAssignment ranks;
  ranks.host = "here";
  const bool left = step(event::Begin{}) || step(lease::Tell(lease::Leader{2, "b:1", false})) ||
                    step(FromCoordinator(Welcome{"b", 1000, 3, "", 2})) ||
                    step(FromCoordinator(Start{1, ranks, 2, ""})) ||
                    step(FromCoordinator(Refused{RefusalKind::lost, "lost"})) || step(FromAgent(Stopped{1})) ||
                    (state == "over" && step(FromAgent(Leave{LeaveKind::time_is_up, 124, "its time is over"})));
  CHECK(left == (state != "closing"));
  if (left) CHECK(reasons.front().starts_with("the member on here took a wrong step, "));
  const Lines closed = script.on(event::Close{});
  CHECK(closed == (state == "closing" ? Lines{"other", "done"} : Lines{"close link"}));
}

TEST_CASE("a node rank that was wished for and is another machine's is warned of once") {
  MemberOptions options = options_for(false);
  options.join.node_rank = 0;
  options.join.rank_is_wish = true;
  options.spec.other_node_rank = "SLURM_NODEID is 1";
  Script script(options);
  script.on(event::Begin{});
  script.welcome();
  const auto starts = [&](Round round, int node_rank, int node_count) {
    RankAssignment ranks;
    ranks.node_rank = node_rank;
    ranks.node_count = node_count;
    Lines log = script.hears(Start{round, ranks, 0, ""});
    std::erase_if(log, [](const std::string& line) { return !line.starts_with("node rank"); });
    return log;
  };
  SECTION("as long as it is its own, it is asked for again") {
    CHECK(starts(1, 0, 2).empty());
    CHECK(starts(2, 0, 2).empty());
  }
  SECTION("another one") {
    CHECK(starts(1, 1, 2) == Lines{"node rank 0, which this machine asks for, is taken, and it gets 1; leave "
                                   "--node-rank out (SLURM_NODEID is 1)"});
    CHECK(starts(2, 1, 2).empty());
  }
}
