// One machine's candidacy, with each line and each moment given by the test.

#include "ddrun/lease/candidate.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::lease;
using namespace std::chrono_literals;

namespace {

using from_program::Line;
using State = CandidateState;
using Log = std::vector<std::string>;

std::string describe(const Tell& what) {
  struct {
    std::string operator()(const Leader& leader) const {
      return concat(leader.is_self ? "lead " : "follow ", leader.term, " ", leader.address);
    }
    std::string operator()(const tell::NoLeader& /*none*/) const { return "no leader"; }
    std::string operator()(const tell::Lost& lost) const { return lost.why; }
    std::string operator()(const tell::Verdict& verdict) const { return concat("verdict: ", verdict.text); }
    std::string operator()(const tell::Status& status) const { return concat("status: ", status.text); }
    std::string operator()(const tell::Unusable& unusable) const {
      return concat("unusable: ", unusable.error.message);
    }
  } const text;
  return std::visit(text, what);
}

/// A candidate with a time to live of 4 s: its ticks are 0.5 s to 1.5 s apart.
class Script {
 public:
  explicit Script(int candidates = 8) : Script(LeaseOptions{"job", 4s, candidates}) {}
  explicit Script(LeaseOptions options) : candidate_(std::move(options), "prog", 7) { step(event::TimeIsUp{}); }

  void step(const Event& event) {
    for (const auto& action : candidate_.step(event, now)) {
      if (std::holds_alternative<action::Start>(action)) log_.emplace_back("start");
      if (const auto* kill = std::get_if<action::Kill>(&action)) log_.push_back(concat("kill: ", kill->why));
      if (const auto* write = std::get_if<action::Write>(&action)) {
        log_.push_back(concat("> ", to_program::serialize(write->line)));
        if (const auto* tick = std::get_if<to_program::Tick>(&write->line)) last_tick = tick->number;
      }
      if (const auto* what = std::get_if<Tell>(&action)) log_.push_back(describe(*what));
      if (const auto* call = std::get_if<action::Complete>(&action)) {
        log_.push_back(concat("complete ", call->id, ": ", call->result ? "ok" : call->result.error().message));
        if (!call->result) code = call->result.error().code;
      }
    }
  }
  void says(const Line& line) { step(line); }
  void done() { says(from_program::Done{last_tick}); }
  void mine(std::uint64_t term) { says(from_program::Mine{term, last_tick}); }

  /// Passes the time at each deadline up to `time` from now.
  void pass(FenceClock::duration time) {
    const auto end = now + time;
    while (candidate_.next_deadline() && *candidate_.next_deadline() <= end) {
      now = std::max(now, *candidate_.next_deadline());
      step(event::TimeIsUp{});
    }
    now = end;
  }
  /// Until the next tick is sent; returns how long that took.
  FenceClock::duration pass_to_tick() {
    const auto begin = now;
    for (const auto tick = last_tick; last_tick == tick;) {
      REQUIRE(candidate_.next_deadline());
      now = *candidate_.next_deadline();
      step(event::TimeIsUp{});
    }
    return now - begin;
  }
  void answered_tick() {
    pass_to_tick();
    done();
  }
  /// Leads in `term`, since a tick at `now`.
  void lead(std::uint64_t term) {
    step(event::WantLead{"here:1"});
    pass_to_tick();
    mine(term);
    done();
    REQUIRE(state() == State::leading);
    (void)log();
  }
  [[nodiscard]] State state() const { return candidate_.state(); }
  [[nodiscard]] bool is_leader() const { return now < candidate_.held_until(); }
  [[nodiscard]] FenceClock::time_point held_until() const { return candidate_.held_until(); }
  /// What it did since the last call.
  Log log() { return std::exchange(log_, {}); }
  /// The same without ticks.
  Log news() {
    Log all = log();
    std::erase_if(all, [](const std::string& line) { return line.starts_with("> tick "); });
    return all;
  }

  FenceClock::time_point now{1h};
  std::uint64_t last_tick = 0;
  Errc code{};  ///< of the last error

 private:
  Candidate candidate_;
  Log log_;
};

}  // namespace

TEST_CASE("a candidate names its job, asks within 20 ms, and then about once a quarter of the time to live") {
  Script script;
  CHECK(script.log() == Log{"start", "> job 1 4000 job"});
  CHECK(script.state() == State::idle);
  script.step(event::WantLead{"here:1"});
  CHECK(script.state() == State::asking);
  CHECK(script.log() == Log{"> campaign here%3A1"});
  CHECK(script.pass_to_tick() < 20ms);
  FenceClock::duration shortest{1h}, longest{};
  for (int i = 0; i < 200; ++i) {
    script.done();
    const auto pause = script.pass_to_tick();
    shortest = std::min(shortest, pause);
    longest = std::max(longest, pause);
  }
  CHECK((shortest >= 500ms && shortest < 600ms));
  CHECK((longest > 1400ms && longest < 1500ms));
}

TEST_CASE("a leader counts from before its tick, and steps down a tenth of the time to live before the end") {
  Script script;
  script.step(event::WantLead{"here:1"});
  script.pass_to_tick();
  const auto sent = script.now;
  CHECK_FALSE(script.is_leader());
  script.now += 300ms;
  script.mine(7);
  CHECK(script.state() == State::leading);
  CHECK(script.held_until() == sent + 3600ms);
  CHECK(script.news().back() == "lead 7 here:1");
  script.done();

  // Renewed by a later tick; not told again, and shortened by nothing.
  script.pass_to_tick();
  const auto renewed = script.now;
  script.mine(7);
  script.says(from_program::Mine{7, 1});
  CHECK(script.held_until() == renewed + 3600ms);
  script.done();
  CHECK(script.news().empty());

  // Answers without renewal.
  while (script.now + 1500ms < renewed + 3600ms) script.answered_tick();
  script.pass(renewed + 3600ms - 1ns - script.now);
  CHECK(script.is_leader());
  CHECK(script.news().empty());
  script.now += 1ns;
  CHECK_FALSE(script.is_leader());
  script.step(event::TimeIsUp{});
  CHECK(script.state() == State::asking);
  CHECK(script.news() ==
        Log{"the lease is lost: prog could not renew it within 3.6 s", "> resign", "> campaign here%3A1"});
}

TEST_CASE("a lease that is too old when it is reported is none") {
  Script script;
  script.step(event::WantLead{"here:1"});
  script.pass_to_tick();
  (void)script.log();
  SECTION("by one that did not lead") {
    script.now += 3600ms;
    script.mine(7);
    CHECK(script.state() == State::asking);
    CHECK(script.log().empty());
    // The same term counts by a later tick.
    script.done();
    script.pass_to_tick();
    script.mine(7);
    CHECK(script.is_leader());
  }
  SECTION("by a leader whose own timer is late") {
    script.mine(7);
    script.done();
    (void)script.log();
    script.now += 3600ms;
    script.says(from_program::Mine{7, 1});
    CHECK(script.state() == State::asking);
    CHECK(script.log().front() == "the lease is lost: prog could not renew it within 3.6 s");
  }
}

TEST_CASE("a lease acquired by a tick before resign does not count, and the next tick is sent at once") {
  Script script;
  script.step(event::WantLead{"here:1"});
  script.pass_to_tick();
  (void)script.log();
  script.step(event::WantResign{5});
  CHECK(script.state() == State::idle);
  script.step(event::WantLead{"here:2"});
  CHECK(script.state() == State::asking);
  CHECK(script.log() == Log{"> resign", "> campaign here%3A2"});
  script.mine(7);
  CHECK(script.state() == State::asking);
  CHECK(script.log().empty());
  script.done();
  CHECK(script.log() == Log{"> tick 2"});
  script.says(from_program::Resigned{});
  CHECK(script.log() == Log{"complete 5: ok"});
  script.mine(8);
  CHECK(script.log() == Log{"lead 8 here:2"});
}

TEST_CASE("only the last eight ticks count, and each line must be due") {
  Script script;
  script.step(event::WantLead{"here:1"});
  for (int i = 0; i < 9; ++i) script.answered_tick();
  (void)script.log();
  SECTION("the eighth") {
    script.says(from_program::Mine{7, 2});
    CHECK(script.log().empty());  // too old
  }
  SECTION("the ninth") {
    script.says(from_program::Mine{7, 1});
    CHECK(script.log().front() == "kill: prog speaks of tick 1, which is not one of the last");
  }
  SECTION("one that was not sent") {
    script.says(from_program::Mine{7, 10});
    CHECK(script.log().front() == "kill: prog speaks of tick 10, which is not one of the last");
  }
  SECTION("done twice") {
    script.done();
    CHECK(script.log().front() == "kill: prog is done with tick 9, which is not due");
  }
  SECTION("done too early") {
    script.pass_to_tick();
    (void)script.log();
    script.says(from_program::Done{9});
    CHECK(script.log().front() == "kill: prog is done with tick 9, which is not due");
  }
  SECTION("not in the protocol") {
    script.step(event::Unparsable{"mine 7"});
    CHECK(script.log() ==
          Log{"kill: prog says what is not in the protocol: 'mine 7'",
              "status: the lease's program is started again: prog says what is not in the protocol: 'mine 7'"});
  }
}

TEST_CASE("terms rise: an old leader is not obeyed, and this machine's own term is not another's") {
  Script script;
  script.lead(7);
  SECTION("of its former program") {
    script.step(event::ProgramEnded{"prog exited with code 1"});
    CHECK(script.log() == Log{"the lease is lost: prog exited with code 1",
                              "status: the lease's program is started again: prog exited with code 1"});
    script.pass(500ms);
    CHECK(script.log() == Log{"start", "> job 1 4000 job", "> campaign here%3A1"});
    script.pass_to_tick();
    script.says(from_program::Other{7, "here:1"});
    CHECK(script.state() == State::asking);
    CHECK(script.news().empty());
    // Another holder has another term.
    script.mine(7);
    CHECK(script.state() == State::asking);
    script.mine(8);
    CHECK(script.log() == Log{"lead 8 here:1"});
  }
  SECTION("while another leads") {
    script.says(from_program::Other{9, "there:1"});
    CHECK(script.state() == State::following);
    CHECK(script.news() ==
          Log{"the lease is lost: another has it", "> resign", "> campaign here%3A1", "follow 9 there:1"});
    script.says(from_program::Other{9, "there:1"});
    CHECK(script.log().empty());
    script.says(from_program::Other{9, "there:2"});
    CHECK(script.log() == Log{"follow 9 there:2"});
    script.says(from_program::Other{8, "old:1"});
    CHECK(script.state() == State::asking);
    CHECK(script.log() == Log{"status: a leader of term 8 is not obeyed after one of term 9", "no leader"});
  }
  SECTION("with another term of this machine") {
    script.pass_to_tick();
    script.mine(8);
    CHECK(script.state() == State::asking);
    CHECK(script.news() == Log{"the lease is lost: prog holds another term", "> resign", "> campaign here%3A1"});
  }
}

TEST_CASE("a lease that is gone is lost, and asked for at once") {
  Script script;
  script.lead(7);
  script.says(from_program::None{});
  CHECK(script.log() == Log{"the lease is lost: it is gone", "> resign", "> campaign here%3A1", "> tick 2"});
  script.says(from_program::Resigned{});
  CHECK(script.log().empty());
}

TEST_CASE("an unchanged leader, address, or status is not repeated") {
  Script script;
  script.lead(7);
  script.step(event::WantLead{"here:1"});
  CHECK(script.log() == Log{"> campaign here%3A1"});
  script.step(event::WantLead{"here:2"});
  CHECK(script.log() == Log{"> campaign here%3A2", "lead 7 here:2"});
  script.says(from_program::Trouble{"no route"});
  script.says(from_program::Trouble{"no route"});
  CHECK(script.log() == Log{"status: no route"});
}

TEST_CASE("a candidate asks soon after another's lease has become free") {
  const int candidates = GENERATE(1, 8, 10'000);
  const auto longest = std::min<FenceClock::duration>(std::chrono::milliseconds(candidates), 500ms);
  CAPTURE(candidates);
  Script script(candidates);
  script.step(event::WantLead{"here:1"});
  script.answered_tick();
  FenceClock::duration sum{};
  for (std::uint64_t term = 1; term <= 50; ++term) {
    script.says(from_program::Other{term, "there:1"});
    script.says(from_program::None{});
    const auto pause = script.pass_to_tick();
    CHECK(pause <= longest);
    sum += pause;
    script.done();
  }
  if (candidates > 1) CHECK((sum > 50 * longest / 4 && sum < 50 * longest * 3 / 4));
}

TEST_CASE("each change to a free lease hastens one tick, and only a candidate's") {
  Script script;
  script.step(event::WantLead{"here:1"});
  script.pass_to_tick();
  script.says(from_program::Other{1, "there:1"});
  SECTION("none is repeated") {
    script.done();
    script.says(from_program::None{});
    CHECK(script.pass_to_tick() <= 8ms);
    for (int i = 0; i < 20; ++i) {
      script.says(from_program::None{});
      script.done();
      script.says(from_program::None{});
      CHECK(script.pass_to_tick() >= 500ms);
    }
  }
  SECTION("a tick is unanswered") {
    script.says(from_program::None{});
    script.says(from_program::None{});
    script.pass(400ms);
    (void)script.log();
    script.done();
    CHECK(script.log().empty());
    CHECK(script.pass_to_tick() <= 8ms);
    script.done();
    CHECK(script.pass_to_tick() >= 500ms);
  }
  SECTION("the other one was not obeyed") {
    script.says(from_program::Other{9, "there:1"});
    script.done();
    script.says(from_program::Other{8, "old:1"});
    script.says(from_program::None{});
    CHECK(script.pass_to_tick() <= 8ms);
  }
  SECTION("it was never held") {
    script.step(event::WantResign{});
    script.says(from_program::None{});
    script.done();
    script.answered_tick();
    script.step(event::WantLead{"here:2"});
    script.says(from_program::None{});
    CHECK(script.pass_to_tick() >= 500ms);
  }
  SECTION("it is no candidate") {
    script.done();
    script.step(event::WantResign{});
    CHECK(script.state() == State::following);
    script.says(from_program::None{});
    CHECK(script.state() == State::idle);
    CHECK(script.pass_to_tick() >= 100ms);  // the regular one
  }
}

TEST_CASE("a program that ends before its first done is unusable, and does nothing more") {
  Script script;
  script.step(event::WantLead{"here:1"});
  script.pass_to_tick();
  SECTION("at once") {}
  SECTION("after it has led") { script.mine(7); }
  (void)script.log();
  const bool led = script.state() == State::leading;
  script.step(event::ProgramEnded{"prog exited with code 2: usage"});
  CHECK(script.state() == State::unusable);
  Log expected{"unusable: the lease's program does not work: prog exited with code 2: usage"};
  if (led) expected.insert(expected.begin(), "the lease is lost: prog exited with code 2: usage");
  CHECK(script.log() == expected);
  script.step(event::WantLead{"here:1"});
  script.step(event::Depose{3});
  script.pass(1h);
  CHECK(script.state() == State::unusable);
  CHECK(script.log().empty());
  script.step(event::WantResign{4});
  script.step(event::Record{"exit 0", 5});
  CHECK(script.log() == Log{"complete 4: ok", "complete 5: only the leader can record a verdict"});
}

TEST_CASE("a program that is slow before its first done is started again, and again") {
  Script script;
  script.step(event::WantLead{"here:1"});
  for (int i = 0; i < 3; ++i) {
    script.pass_to_tick();
    (void)script.log();
    script.pass(8s);
    CHECK(script.log().front() == "kill: prog has not answered for 8.0 s");
    CHECK(script.state() == State::asking);
  }
  script.pass_to_tick();
  script.step(event::ProgramEnded{"prog exited with code 2: usage"});
  CHECK(script.state() == State::unusable);
}

TEST_CASE("a program without an answer for twice the time to live is killed and started again") {
  Script script;
  script.step(event::WantLead{"here:1"});
  script.answered_tick();
  script.pass_to_tick();
  (void)script.log();
  SECTION("this process runs") {
    script.pass(8s - 1ns);
    CHECK(script.log().empty());
    script.pass(1ns);
    CHECK(script.log() == Log{"kill: prog has not answered for 8.0 s",
                              "status: the lease's program is started again: prog has not answered for 8.0 s"});
    script.pass(500ms);
    CHECK(script.log().front() == "start");
  }
  SECTION("the time in which this process was suspended does not count") {
    script.now += 1h;
    script.step(event::TimeIsUp{});
    CHECK(script.log().empty());
    script.done();
    script.pass(8s);
    CHECK(script.log() == Log{"> tick 3"});
  }
}

TEST_CASE("each resign is answered in order, within the time to live, and at once without a program") {
  Script script;
  script.lead(7);
  script.step(event::WantResign{1});
  CHECK_FALSE(script.is_leader());
  CHECK(script.state() == State::idle);
  script.step(event::WantResign{});
  script.step(event::WantResign{2});
  CHECK(script.log() == Log{"> resign", "> resign", "> resign"});
  SECTION("in order") {
    script.says(from_program::Resigned{});
    script.says(from_program::Resigned{});
    CHECK(script.log() == Log{"complete 1: ok"});
    script.says(from_program::Resigned{});
    CHECK(script.log() == Log{"complete 2: ok"});
    script.says(from_program::Resigned{});
    CHECK(script.log().empty());
  }
  SECTION("late") {
    script.pass(4s);
    const Log errors{"complete 1: the lease was not given back: prog has not answered",
                     "complete 2: the lease was not given back: prog has not answered"};
    CHECK(script.news() == errors);
    CHECK(script.code == Errc::unavailable);
    // The answers to these three are not one to the next.
    script.step(event::WantResign{3});
    for (int i = 0; i < 3; ++i) script.says(from_program::Resigned{});
    CHECK(script.log() == Log{"> resign"});
    script.says(from_program::Resigned{});
    CHECK(script.log() == Log{"complete 3: ok"});
  }
  SECTION("by its end") {
    script.step(event::ProgramEnded{"prog is gone"});
    CHECK(script.log() ==
          Log{"complete 1: ok", "complete 2: ok", "status: the lease's program is started again: prog is gone"});
    script.step(event::WantResign{3});
    CHECK(script.log() == Log{"complete 3: ok"});
  }
}

TEST_CASE("a later resign comes unless another call is first") {
  Script script;
  script.lead(7);
  script.step(event::WantResign{0, 1s});
  CHECK(script.is_leader());
  SECTION("alone") {
    script.pass(1s);
    CHECK(script.state() == State::idle);
    CHECK(script.news() == Log{"> resign"});
  }
  SECTION("a campaign") {
    script.step(event::WantLead{"here:2"});
    script.pass(1s);
    CHECK(script.state() == State::leading);
  }
  SECTION("a resign") {
    script.step(event::WantResign{});
    script.pass(1s);
    CHECK(script.news() == Log{"> resign"});
  }
}

TEST_CASE("a leader deposes none, and any other machine tells its program") {
  Script script;
  script.step(event::Depose{3});
  CHECK(script.log().back() == "> depose 3");
  script.lead(7);
  script.step(event::Depose{7});
  CHECK(script.log().empty());
}

TEST_CASE("a verdict is recorded by the leader, once") {
  Script script;
  script.step(event::Record{"exit 0", 1});
  CHECK(script.log().back() == "complete 1: only the leader can record a verdict");
  CHECK(script.code == Errc::cancelled);
  script.lead(7);
  script.step(event::Record{"", 2});
  script.step(event::Record{std::string(max_verdict_bytes + 1, 'x'), 3});
  CHECK(script.log() ==
        Log{"complete 2: a verdict has 1 byte to 16 KiB", "complete 3: a verdict has 1 byte to 16 KiB"});
  CHECK(script.code == Errc::invalid_argument);
  script.step(event::Record{"exit 0", 4});
  CHECK(script.log() == Log{"> verdict exit%200"});
  script.step(event::Record{"exit 1", 5});
  CHECK(script.log() == Log{"complete 5: a verdict is being recorded"});
  CHECK(script.code == Errc::unavailable);

  SECTION("recorded") {
    script.says(from_program::Recorded{});
    CHECK(script.log() == Log{"verdict: exit 0", "complete 4: ok"});
    script.says(from_program::Verdict{"exit 0"});
    CHECK(script.log().empty());
    script.step(event::Record{"exit 0", 6});
    script.step(event::Record{"exit 1", 7});
    CHECK(script.log() == Log{"complete 6: ok", "complete 7: the job has a verdict already"});
    CHECK(script.code == Errc::invalid_argument);
  }
  SECTION("refused") {
    script.says(from_program::Refused{"no answer"});
    CHECK(script.log() == Log{"complete 4: the verdict was not recorded: no answer"});
    CHECK(script.code == Errc::unavailable);
  }
  SECTION("another machine was faster") {
    script.says(from_program::Verdict{"exit 9"});
    CHECK(script.log() ==
          Log{"verdict: exit 9", "complete 4: the verdict was not recorded: the job has another one already"});
    CHECK(script.code == Errc::invalid_argument);
    script.says(from_program::Refused{"the job has a verdict"});
    CHECK(script.log().empty());
  }
  SECTION("the lease is lost") {
    script.says(from_program::Other{8, "there:1"});
    CHECK(script.log()[0] == "complete 4: the verdict was not recorded: the lease is lost: another has it");
    CHECK(script.code == Errc::unavailable);
  }
  SECTION("the lease is given back") {
    script.step(event::WantResign{});
    CHECK(script.log() ==
          Log{"complete 4: the verdict was not recorded: gave the lease back before the verdict was recorded",
              "> resign"});
  }
  SECTION("no answer in time, and then a late one about the first text") {
    const auto end = script.now + 4s;
    while (script.now < end) {
      script.pass_to_tick();
      script.mine(7);
      script.done();
    }
    CHECK(script.news() == Log{"complete 4: the verdict was not recorded: prog has not answered for 4.0 s"});
    CHECK(script.code == Errc::timeout);
    script.step(event::Record{"exit 1", 6});
    script.says(from_program::Refused{"too late"});  // about the first: it may still be recorded
    CHECK(script.log() == Log{"> verdict exit%201"});
    script.says(from_program::Recorded{});
    CHECK(script.log() == Log{"verdict: exit 1", "complete 6: ok"});
  }
}

TEST_CASE("a leader without the lease by the clock records no verdict") {
  Script script;
  script.lead(7);
  script.now += 3600ms;
  script.step(event::Record{"exit 0", 1});
  CHECK(script.log() == Log{"complete 1: only the leader can record a verdict"});
}

TEST_CASE("a candidate whose step the order lacks counts its lease as lost, and starts its program again") {
  const std::string state = GENERATE("leading", "following");
  LeaseOptions options{"job", 4s, 8};
  options.on_step = [&, refused = false](std::string_view, std::string_view next, bool is_legal) mutable {
    return is_legal && (next != state || std::exchange(refused, true));
  };
  Script script(options);
  script.step(event::WantLead{"a:1"});
  script.pass_to_tick();
  script.done();
  (void)script.log();
  if (state == "leading") script.mine(1);
  else script.says(from_program::Other{1, "b:1"});
  const std::string why = "prog was ended: the candidate here took a wrong step, ";
  const Log log = script.log();
  REQUIRE(log.size() == 2);
  CHECK(log[0].starts_with("kill: " + why));
  CHECK(log[1].starts_with("status: the lease's program is started again: " + why));
  CHECK(script.held_until() <= script.now);
  CHECK(script.state() == State::asking);
  script.pass(1s);
  script.mine(2);
  CHECK(script.state() == State::leading);
}

TEST_CASE("lines of a program that has ended are passed over") {
  Script script;
  script.step(event::WantLead{"a:1"});
  script.step(event::ProgramEnded{"exited"});
  REQUIRE(script.state() == State::unusable);
  (void)script.log();
  script.step(GENERATE(Event(Line(from_program::Mine{1, 1})), Event(Line(from_program::Other{1, "b:1"})),
                       Event(Line(from_program::None{})), Event(Line(from_program::Done{1})),
                       Event(event::Unparsable{"?"}), Event(event::ProgramEnded{"again"})));
  CHECK(script.log().empty());
  CHECK(script.state() == State::unusable);
}
