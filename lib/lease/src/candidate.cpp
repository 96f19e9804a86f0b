#include "ddrun/lease/candidate.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"

namespace ddrun::lease {

namespace {

constexpr Milliseconds max_tick_interval{1000};
constexpr Milliseconds first_tick_spread{20};
constexpr Milliseconds max_free_spread{500};
constexpr Milliseconds restart_delay{500};

}  // namespace

Candidate::Candidate(LeaseOptions options, std::string program, std::uint32_t seed)
    : options_(std::move(options)),
      program_(std::move(program)),
      tick_interval_(std::min(options_.ttl / 4, max_tick_interval)),
      random_(seed) {}

std::vector<Action> Candidate::step(const Event& event, FenceClock::time_point now) {
  const auto gap = now - std::exchange(now_, now);
  // Ticks come more often, so this process did not run, and the program's answer may not have been read.
  if (const auto done = deadlines_.at(Due::done); done && gap > 2 * tick_interval_) {
    deadlines_.arm(Due::done, *done + gap);
  }
  std::visit([this](const auto& what) { on(what); }, event);
  return std::exchange(actions_, {});
}

void Candidate::complete(std::uint64_t id, Result<void> result) {
  if (id != 0) actions_.emplace_back(action::Complete{id, std::move(result)});
}

FenceClock::duration Candidate::random_below(Milliseconds bound) {
  return Milliseconds(random_() % static_cast<unsigned>(bound.count()));
}

// ---- the owner

void Candidate::on(const event::Begin& /*begin*/) { start_program(); }

void Candidate::on(const event::WantLead& want) {
  deadlines_.clear(Due::resign_later);
  if (state_ == CandidateState::unusable) return;
  address_ = want.address;
  is_candidate_ = true;
  if (state_ == CandidateState::idle) state_ = CandidateState::asking;
  write_campaign();
  tick_after_resign();
  if (is_leading()) lead_or_follow({own_term_, address_, true});
}

void Candidate::on(const event::WantResign& want) {
  if (want.after > Milliseconds{0}) deadlines_.arm(Due::resign_later, now_ + want.after);
  else resign(want.id);
}

void Candidate::resign(std::uint64_t id) {
  deadlines_.clear(Due::resign_later);
  is_candidate_ = false;
  fail_record("gave the lease back before the verdict was recorded");
  step_down();
  if (!running_) return complete(id, {});
  write_resign(id);
  deadlines_.arm(Due::resign, now_ + options_.ttl);
}

void Candidate::on(const event::Depose& depose) {
  if (running_ && !is_leading()) write(to_program::Depose{depose.term});
}

void Candidate::on(const event::Record& record) {
  const auto refuse = [&](Errc code, const char* why) { complete(record.id, fail(code, why)); };
  if (record.text.empty() || record.text.size() > max_verdict_bytes) {
    return refuse(Errc::invalid_argument, "a verdict has 1 byte to 16 KiB");
  }
  // An earlier response may have been lost.
  if (verdict_ == record.text) return complete(record.id, {});
  if (verdict_) return refuse(Errc::invalid_argument, "the job has a verdict already");
  if (recording_) return refuse(Errc::unavailable, "a verdict is being recorded");
  if (held_until() <= now_) return refuse(Errc::cancelled, "only the leader can record a verdict");
  recording_ = {record.text, record.id};
  write(to_program::Verdict{record.text});
  sent_verdicts_.push_back(record.text);
  deadlines_.arm(Due::record, now_ + options_.ttl);
}

void Candidate::finish_record(const Result<void>& result) {
  deadlines_.clear(Due::record);
  if (const auto recording = std::exchange(recording_, std::nullopt)) complete(recording->id, result);
}

void Candidate::fail_record(const std::string& why, Errc code) {
  finish_record(fail(code, concat("the verdict was not recorded: ", why)));
}

// ---- time

void Candidate::on(const event::TimeIsUp& /*due*/) {
  while (const auto due = deadlines_.take_expired(now_)) on_due(*due);
}

void Candidate::on_due(Due due) {
  const auto not_answered = [](Milliseconds time) { return concat("has not answered for ", format_duration(time)); };
  switch (due) {
    case Due::fence: return lost_by_clock();
    case Due::record: return fail_record(concat(program_, " ", not_answered(options_.ttl)), Errc::timeout);
    case Due::resign:
      return complete_resigns(
          fail(Errc::unavailable, concat("the lease was not given back: ", program_, " has not answered")));
    case Due::resign_later: return resign(0);
    case Due::done: return fail_program(not_answered(2 * options_.ttl));
    case Due::restart: return start_program();
    case Due::tick: return tick();
  }
}

void Candidate::tick() {
  deadlines_.arm(Due::tick, now_ + tick_interval_ / 2 + random_below(tick_interval_));
  if (deadlines_.is_armed(Due::done)) return;
  ticks_.push_back({++last_tick_, now_});
  if (ticks_.size() > tick_window) ticks_.pop_front();
  write(to_program::Tick{last_tick_});
  deadlines_.arm(Due::done, now_ + 2 * options_.ttl);
}

/// Leases acquired by ticks before `resign` do not count, so a candidate does not wait for the next regular tick.
void Candidate::tick_after_resign() {
  if (running_ && is_candidate_ && last_tick_ != 0 && last_tick_ <= resigned_at_tick_ &&
      !deadlines_.is_armed(Due::done)) {
    tick();
  }
}

/// The lease has become free: each candidate asks soon, and not all at once.
void Candidate::tick_early() {
  if (!is_candidate_) return;
  tick_after_done_ = deadlines_.is_armed(Due::done);
  if (tick_after_done_) return;
  const auto spread = std::clamp(Milliseconds(options_.candidates), Milliseconds(0), max_free_spread);
  const auto soon = now_ + random_below(spread + Milliseconds(1));
  deadlines_.arm(Due::tick, std::min(deadlines_.at(Due::tick).value_or(soon), soon));
}

// ---- the program

void Candidate::start_program() {
  running_ = true;
  ticks_.clear();
  sent_verdicts_.clear();
  leader_line_ = tick_after_done_ = false;
  actions_.emplace_back(action::Start{});
  write(to_program::Job{options_.ttl, options_.job});
  if (is_candidate_) write_campaign();
  // Spreads the candidates of a job.
  deadlines_.arm(Due::tick, now_ + random_below(first_tick_spread));
}

void Candidate::on(const event::ProgramEnded& ended) {
  running_ = false;
  deadlines_.clear(Due::tick);
  deadlines_.clear(Due::done);
  complete_resigns({});
  resigns_.clear();
  if (is_leading()) lost(ended.why);
  if (!ever_done_) {
    is_candidate_ = false;
    state_ = CandidateState::unusable;
    return tell(tell::Unusable{{Errc::unavailable, concat("the lease's program does not work: ", ended.why)}});
  }
  status(concat("the lease's program is started again: ", ended.why));
  no_leader();
  deadlines_.arm(Due::restart, now_ + restart_delay);
}

void Candidate::fail_program(const std::string& what) {
  const std::string why = concat(program_, " ", what);
  actions_.emplace_back(action::Kill{why});
  on(event::ProgramEnded{why});
}

void Candidate::write_campaign() {
  if (running_) write(to_program::Campaign{address_});
}

/// A lease that the program acquired by an earlier tick, and reports only now, is given back by it when it reads this.
void Candidate::write_resign(std::uint64_t id) {
  resigned_at_tick_ = last_tick_;
  resigns_.push_back(id);
  write(to_program::Resign{});
}

void Candidate::on(const from_program::Line& line) {
  std::visit([this](const auto& what) { on(what); }, line);
}

void Candidate::on(const event::Unparsable& line) {
  fail_program(concat("says what is not in the protocol: '", cut_line(plain_line(line.text), 100), "'"));
}

void Candidate::on(const from_program::Done& done) {
  if (done.tick != last_tick_ || !deadlines_.is_armed(Due::done)) {
    return fail_program(concat("is done with tick ", done.tick, ", which is not due"));
  }
  deadlines_.clear(Due::done);
  ever_done_ = true;
  tick_after_resign();
  if (std::exchange(tick_after_done_, false) && !deadlines_.is_armed(Due::done)) tick_early();
}

void Candidate::on(const from_program::Mine& mine) {
  const auto tick = std::find_if(ticks_.begin(), ticks_.end(), [&](const Tick& t) { return t.number == mine.tick; });
  if (tick == ticks_.end()) {
    return fail_program(concat("speaks of tick ", mine.tick, ", which is not one of the last"));
  }
  leader_line_ = false;
  // Given up, but the program has not read that yet.
  if (!is_candidate_ || mine.tick <= resigned_at_tick_ || (!is_leading() && mine.term <= highest_term_)) return;
  if (is_leading() && mine.term != own_term_) return lost(concat(program_, " holds another term"));
  const auto until = std::max(held_until(), tick->sent + (options_.ttl - fence_margin(options_.ttl)));
  if (until <= now_) return is_leading() ? lost_by_clock() : void();
  deadlines_.arm(Due::fence, until);
  own_term_ = highest_term_ = mine.term;
  lead_or_follow({mine.term, address_, true});
}

void Candidate::on(const from_program::Other& other) {
  if (is_leading()) lost("another has it");
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

void Candidate::on(const from_program::None& /*none*/) {
  const bool was_held = std::exchange(leader_line_, false) || state_ == CandidateState::following;
  if (is_leading()) lost("it is gone");
  no_leader();
  if (was_held) tick_early();
}

void Candidate::on(const from_program::Verdict& verdict) {
  if (verdict_ == verdict.text) return;
  verdict_ = verdict.text;
  tell(tell::Verdict{verdict.text});
  if (recording_ && recording_->text == verdict.text) finish_record({});
  else fail_record("the job has another one already", Errc::invalid_argument);
}

/// Each `verdict` is answered, in order: a late answer is about the earlier text.
void Candidate::on(const from_program::Recorded& /*recorded*/) {
  if (sent_verdicts_.empty()) return;
  const from_program::Verdict verdict{std::move(sent_verdicts_.front())};
  sent_verdicts_.pop_front();
  on(verdict);
}

/// The verdict may be recorded all the same; another one is then reported as `verdict`.
void Candidate::on(const from_program::Refused& refused) {
  if (!sent_verdicts_.empty()) sent_verdicts_.pop_front();
  if (sent_verdicts_.empty()) fail_record(refused.why);
}

/// Each `resign` is answered, in order.
void Candidate::on(const from_program::Resigned& /*resigned*/) {
  if (resigns_.empty()) return;
  complete(resigns_.front(), {});
  resigns_.pop_front();
  if (resigns_.empty()) deadlines_.clear(Due::resign);
}

/// Their answers may still come.
void Candidate::complete_resigns(const Result<void>& result) {
  deadlines_.clear(Due::resign);
  for (auto& id : resigns_) complete(std::exchange(id, 0), result);
}

void Candidate::on(const from_program::Trouble& trouble) { status(trouble.text); }

// ---- leadership

void Candidate::lead_or_follow(Leader leader) {
  state_ = leader.is_self ? CandidateState::leading : CandidateState::following;
  if (leader_ == leader) return;
  leader_ = leader;
  tell(std::move(leader));
}

void Candidate::no_leader() {
  if (state_ != CandidateState::following) return;
  forget_leader();
  tell(tell::NoLeader{});
}

void Candidate::status(std::string text) {
  if (text == last_status_) return;
  last_status_ = text;
  tell(tell::Status{std::move(text)});
}

void Candidate::lost_by_clock() {
  const Milliseconds time = options_.ttl - fence_margin(options_.ttl);
  lost(concat(program_, " could not renew it within ", format_duration(time)));
}

void Candidate::lost(const std::string& why) {
  const std::string text = concat("the lease is lost: ", why);
  fail_record(text);
  step_down();
  tell(tell::Lost{text});
  // The program gives up whatever it holds; the next lease has a new term.
  if (running_) write_resign(0);
  write_campaign();
  tick_after_resign();
}

void Candidate::step_down() {
  deadlines_.clear(Due::fence);
  if (state_ == CandidateState::leading || state_ == CandidateState::asking) forget_leader();
}

void Candidate::forget_leader() {
  state_ = is_candidate_ ? CandidateState::asking : CandidateState::idle;
  leader_.reset();
}

}  // namespace ddrun::lease
