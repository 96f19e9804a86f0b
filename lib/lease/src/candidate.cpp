#include "ddrun/lease/candidate.hpp"

#include <algorithm>
#include <deque>
#include <random>
#include <utility>

#include "ddrun/base/deadlines.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::lease {

namespace {

using State = CandidateState;
using Step = CandidateOrder::Step;

constexpr Milliseconds max_tick_interval{1000};
constexpr Milliseconds first_tick_spread{20};
constexpr Milliseconds max_free_spread{500};
constexpr Milliseconds restart_delay{500};

}  // namespace

class Candidate::Machine {
 public:
  Machine(LeaseOptions options, std::string program, std::uint32_t seed)
      : options_(std::move(options)),
        program_(std::move(program)),
        tick_interval_(std::min(options_.ttl / 4, max_tick_interval)),
        random_(seed),
        state_(options_.on_step) {
    deadlines_.arm(Due::start, {});
  }

  std::vector<Action> step(const Event& event, FenceClock::time_point now) {
    const auto gap = now - std::exchange(now_, now);
    // Ticks come more often, so this process did not run, and the program's answer may not have been read.
    if (const auto done = deadlines_.at(Due::done); done && gap > 2 * tick_interval_) {
      deadlines_.arm(Due::done, *done + gap);
    }
    std::visit([this](const auto& what) { on(what); }, event);
    if (const auto wrong = state_.take_wrong()) end_by_defect(concat("the candidate here ", *wrong));
    return std::exchange(actions_, {});
  }

  [[nodiscard]] State state() const { return state_; }
  [[nodiscard]] std::optional<FenceClock::time_point> next_deadline() const { return deadlines_.next(); }
  [[nodiscard]] FenceClock::time_point held_until() const {
    return deadlines_.at(Due::fence).value_or(FenceClock::time_point{});
  }

 private:
  enum class Due { fence, record, resign, resign_later, done, start, tick };

  // ---- the owner

  void on(const event::WantLead& want) {
    deadlines_.clear(Due::resign_later);
    if (state_ == State::unusable) return;
    address_ = want.address;
    is_candidate_ = true;
    if (state_ == State::idle && !state_.enter(Step::campaign)) return;
    write_campaign();
    tick_after_resign();
    if (state_ == State::leading) lead_or_follow({own_term_, address_, true});
  }

  void on(const event::WantResign& want) {
    if (want.after > Milliseconds{0}) deadlines_.arm(Due::resign_later, now_ + want.after);
    else resign(want.id);
  }

  void on(const event::Depose& depose) {
    if (running_ && state_ != State::leading) write(to_program::Depose{depose.term});
  }

  void on(const event::Record& record) {
    const auto refuse = [&](Errc code, const char* why) { complete(record.id, fail(code, why)); };
    if (record.text.empty() || record.text.size() > max_verdict_bytes) {
      return refuse(Errc::invalid_argument, "a verdict has 1 byte to 16 KiB");
    }
    // An earlier response may have been lost.
    if (verdict_ == record.text) return complete(record.id, {});
    if (verdict_) return refuse(Errc::invalid_argument, "the job has a verdict already");
    if (record_id_ != 0) return refuse(Errc::unavailable, "a verdict is being recorded");
    if (held_until() <= now_) return refuse(Errc::cancelled, "only the leader can record a verdict");
    record_id_ = record.id;
    sent_verdicts_.push_back(to_record_ = record.text);
    write(to_program::Verdict{record.text});
    deadlines_.arm(Due::record, now_ + options_.ttl);
  }

  void on(const event::TimeIsUp& /*due*/) {
    const auto not_answered = [](Milliseconds time) { return concat("has not answered for ", format_duration(time)); };
    deadlines_.expire(now_, [&](Due due, bool again) {
      if (!state_.check(due, again)) return;
      switch (due) {
        case Due::fence: lost_by_clock(); break;
        case Due::record: fail_record(concat(program_, " ", not_answered(options_.ttl)), Errc::timeout); break;
        case Due::resign:
          complete_resigns(
              fail(Errc::unavailable, concat("the lease was not given back: ", program_, " has not answered")));
          break;
        case Due::resign_later: resign(0); break;
        case Due::done: kill_program(not_answered(2 * options_.ttl), true); break;
        case Due::start: start_program(); break;
        case Due::tick: tick(); break;
      }
    });
  }

  void resign(std::uint64_t id) {
    deadlines_.clear(Due::resign_later);
    is_candidate_ = false;
    fail_record("gave the lease back before the verdict was recorded");
    if (state_ != State::following && state_ != State::unusable) step_down();
    if (!running_) return complete(id, {});
    write_resign(id);
    deadlines_.arm(Due::resign, now_ + options_.ttl);
  }

  void complete(std::uint64_t id, Result<void> result) {
    if (id != 0) actions_.emplace_back(action::Complete{id, std::move(result)});
  }
  void finish_record(const Result<void>& result) {
    deadlines_.clear(Due::record);
    complete(std::exchange(record_id_, 0), result);
  }
  void fail_record(const std::string& why, Errc code = Errc::unavailable) {
    finish_record(fail(code, concat("the verdict was not recorded: ", why)));
  }
  /// Their answers may still come.
  void complete_resigns(const Result<void>& result) {
    deadlines_.clear(Due::resign);
    for (auto& id : resigns_) complete(std::exchange(id, 0), result);
  }

  // ---- ticks

  FenceClock::duration random_below(Milliseconds bound) {
    return Milliseconds(random_() % static_cast<unsigned>(bound.count()));
  }

  void tick() {
    deadlines_.arm(Due::tick, now_ + tick_interval_ / 2 + random_below(tick_interval_));
    if (deadlines_.is_armed(Due::done)) return;
    ticks_.push_back(now_);
    if (ticks_.size() > tick_window) ticks_.pop_front();
    write(to_program::Tick{++last_tick_});
    deadlines_.arm(Due::done, now_ + 2 * options_.ttl);
  }

  /// Leases acquired by ticks before `resign` do not count, so a candidate does not wait for the next regular tick.
  void tick_after_resign() {
    const bool is_due = running_ && is_candidate_ && last_tick_ != 0 && last_tick_ <= resigned_at_tick_;
    if (is_due && !deadlines_.is_armed(Due::done)) tick();
  }

  /// The lease has become free: each candidate asks soon, and not all at once.
  void tick_early() {
    tick_after_done_ = is_candidate_ && deadlines_.is_armed(Due::done);
    if (!is_candidate_ || tick_after_done_) return;
    const auto spread = std::clamp(Milliseconds(options_.candidates), Milliseconds(0), max_free_spread);
    const auto soon = now_ + random_below(spread + Milliseconds(1));
    deadlines_.arm(Due::tick, std::min(deadlines_.at(Due::tick).value_or(soon), soon));
  }

  // ---- the program

  void write(to_program::Line line) { actions_.emplace_back(action::Write{std::move(line)}); }
  void write_campaign() {
    if (running_ && is_candidate_) write(to_program::Campaign{address_});
  }
  /// A lease that the program acquired by an earlier tick, and reports only now, is given back by it when it reads
  /// this.
  void write_resign(std::uint64_t id) {
    resigned_at_tick_ = last_tick_;
    resigns_.push_back(id);
    write(to_program::Resign{});
  }

  void start_program() {
    running_ = true;
    ticks_.clear();
    sent_verdicts_.clear();
    leader_line_ = tick_after_done_ = false;
    actions_.emplace_back(action::Start{});
    write(to_program::Job{options_.ttl, options_.job});
    write_campaign();
    // Spreads the candidates of a job.
    deadlines_.arm(Due::tick, now_ + random_below(first_tick_spread));
  }

  void on(const event::ProgramEnded& ended) {
    if (running_) program_ended(ended.why, ever_done_);
  }

  void program_ended(const std::string& why, bool starts_again) {
    running_ = false;
    deadlines_.clear(Due::tick);
    deadlines_.clear(Due::done);
    complete_resigns({});
    resigns_.clear();
    if (state_ == State::leading) lost(why);
    if (!starts_again) {
      is_candidate_ = false;
      if (!state_.enter(Step::fail)) return;
      return tell(tell::Unusable{{Errc::unavailable, concat("the lease's program does not work: ", why)}});
    }
    status(concat("the lease's program is started again: ", why));
    no_leader();
    deadlines_.arm(Due::start, now_ + restart_delay);
  }

  void fail_program(const std::string& what) {
    if (running_) kill_program(what, ever_done_);
  }
  /// The lease counts as lost: its program gives it back, and is started again.
  void end_by_defect(const std::string& what) {
    if (!running_) return status(what);
    kill_program(concat("was ended: ", what), true);
    if (state_ != State::leading) deadlines_.clear(Due::fence);
  }

  void kill_program(const std::string& what, bool starts_again) {
    const std::string why = concat(program_, " ", what);
    actions_.emplace_back(action::Kill{why});
    program_ended(why, starts_again);
  }

  void on(const event::Unparsable& line) {
    fail_program(concat("says what is not in the protocol: '", cut_line(plain_line(line.text), 100), "'"));
  }
  void on(const from_program::Line& line) {
    if (running_) std::visit([this](const auto& what) { on(what); }, line);
  }

  void on(const from_program::Done& done) {
    if (done.tick != last_tick_ || !deadlines_.is_armed(Due::done)) {
      return fail_program(concat("is done with tick ", done.tick, ", which is not due"));
    }
    deadlines_.clear(Due::done);
    ever_done_ = true;
    tick_after_resign();
    if (std::exchange(tick_after_done_, false) && !deadlines_.is_armed(Due::done)) tick_early();
  }

  void on(const from_program::Mine& mine) {
    if (mine.tick > last_tick_ || last_tick_ - mine.tick >= ticks_.size()) {
      return fail_program(concat("speaks of tick ", mine.tick, ", which is not one of the last"));
    }
    const bool leads = state_ == State::leading;
    leader_line_ = false;
    // Given up, but the program has not read that yet.
    if (!is_candidate_ || mine.tick <= resigned_at_tick_ || (!leads && mine.term <= highest_term_)) return;
    if (leads && mine.term != own_term_) return lost(concat(program_, " holds another term"));
    const auto sent = ticks_[ticks_.size() - 1 - (last_tick_ - mine.tick)];
    const auto until = std::max(held_until(), sent + (options_.ttl - fence_margin(options_.ttl)));
    if (until <= now_) return leads ? lost_by_clock() : void();
    deadlines_.arm(Due::fence, until);
    own_term_ = highest_term_ = mine.term;
    lead_or_follow({mine.term, address_, true});
  }

  void on(const from_program::Other& other) {
    if (state_ == State::leading) lost("another has it");
    leader_line_ = true;
    // The lease of this machine's former program: it expires.
    if (other.term == own_term_) return no_leader();
    if (other.term < highest_term_) {
      status(concat("a leader of term ", other.term, " is not obeyed after one of term ", highest_term_));
      return no_leader();
    }
    highest_term_ = other.term;
    lead_or_follow({other.term, other.address, false});
  }

  void on(const from_program::None& /*none*/) {
    const bool was_held = std::exchange(leader_line_, false) || state_ == State::following;
    if (state_ == State::leading) lost("it is gone");
    no_leader();
    if (was_held) tick_early();
  }

  void on(const from_program::Verdict& verdict) {
    if (verdict_ == verdict.text) return;
    verdict_ = verdict.text;
    tell(tell::Verdict{verdict.text});
    if (to_record_ == verdict.text) finish_record({});
    else fail_record("the job has another one already", Errc::invalid_argument);
  }

  /// Each `verdict` is answered, in order: a late answer is about the earlier text.
  void on(const from_program::Recorded& /*recorded*/) {
    if (sent_verdicts_.empty()) return;
    const from_program::Verdict verdict{std::move(sent_verdicts_.front())};
    sent_verdicts_.pop_front();
    on(verdict);
  }

  /// The verdict may be recorded all the same; another one is then reported as `verdict`.
  void on(const from_program::Refused& refused) {
    if (!sent_verdicts_.empty()) sent_verdicts_.pop_front();
    if (sent_verdicts_.empty()) fail_record(refused.why);
  }

  /// Each `resign` is answered, in order.
  void on(const from_program::Resigned& /*resigned*/) {
    if (resigns_.empty()) return;
    complete(resigns_.front(), {});
    resigns_.pop_front();
    if (resigns_.empty()) deadlines_.clear(Due::resign);
  }

  void on(const from_program::Trouble& trouble) { status(trouble.text); }

  // ---- leadership

  void tell(Tell what) { actions_.emplace_back(std::move(what)); }
  void status(const std::string& text) {
    if (std::exchange(last_status_, text) != text) tell(tell::Status{text});
  }

  void lead_or_follow(const Leader& leader) {
    const bool may = state_.enter(leader.is_self ? Step::lead : Step::follow);
    if (!may || leader_ == leader) return;
    leader_ = leader;
    tell(leader);
  }

  void no_leader() {
    if (state_ != State::following) return;
    step_down();
    tell(tell::NoLeader{});
  }

  void step_down() {
    deadlines_.clear(Due::fence);
    leader_.reset();
    (void)state_.enter(is_candidate_ ? Step::lose : Step::resign);
  }

  void lost(const std::string& why) {
    const std::string text = concat("the lease is lost: ", why);
    fail_record(text);
    step_down();
    tell(tell::Lost{text});
    // The program gives up whatever it holds; the next lease has a new term.
    if (running_) write_resign(0);
    write_campaign();
    tick_after_resign();
  }
  void lost_by_clock() {
    lost(concat(program_, " could not renew it within ", format_duration(options_.ttl - fence_margin(options_.ttl))));
  }

  LeaseOptions options_;
  std::string program_;
  Milliseconds tick_interval_;
  std::minstd_rand random_;
  FenceClock::time_point now_;
  std::vector<Action> actions_;
  Deadlines<Due, FenceClock::time_point> deadlines_;
  LegalState<State, CandidateOrder> state_;
  bool is_candidate_ = false;
  bool running_ = false;    ///< the program
  bool ever_done_ = false;  ///< the program has worked
  std::string address_;
  std::optional<Leader> leader_;  ///< as told
  std::string last_status_;
  std::uint64_t highest_term_ = 0;
  std::uint64_t own_term_ = 0;                ///< of this machine's last leadership
  bool leader_line_ = false;                  ///< the program's last report of the lease: another machine has it
  std::deque<FenceClock::time_point> ticks_;  ///< when the last ones were sent
  std::uint64_t last_tick_ = 0;
  bool tick_after_done_ = false;           ///< early
  std::uint64_t resigned_at_tick_ = 0;     ///< last tick before `resign`
  std::deque<std::uint64_t> resigns_;      ///< sent, unanswered; 0: no answer to the owner
  std::deque<std::string> sent_verdicts_;  ///< unanswered
  std::optional<std::string> verdict_;     ///< of the job
  std::uint64_t record_id_ = 0;            ///< pending; 0: none
  std::string to_record_;
};

Candidate::Candidate(LeaseOptions options, std::string program, std::uint32_t seed)
    : machine_(std::make_unique<Machine>(std::move(options), std::move(program), seed)) {}
Candidate::~Candidate() = default;
std::vector<Action> Candidate::step(const Event& event, FenceClock::time_point now) {
  return machine_->step(event, now);
}
CandidateState Candidate::state() const { return machine_->state(); }
std::optional<FenceClock::time_point> Candidate::next_deadline() const { return machine_->next_deadline(); }
FenceClock::time_point Candidate::held_until() const { return machine_->held_until(); }

}  // namespace ddrun::lease
