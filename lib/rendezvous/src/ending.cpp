#include <utility>

#include "causes.hpp"
#include "coordinator_state.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::rendezvous {

namespace {

constexpr Milliseconds time_to_read_the_verdict{5'000};
constexpr Milliseconds time_for_latecomers{5'000};

}  // namespace

void Coordinator::State::end(VerdictMessage verdict) {
  verdict.restarts = memory_.budget.used();
  memory_.verdict = std::move(verdict);
  phase_ = Phase::ended;
  for (auto* deadline : {&join_until_, &last_call_, &pause_until_, &opened_until_, &stopped_until_, &skew_until_}) {
    deadline->reset();
  }
  verdict_until_ = now + time_to_read_the_verdict;
  // Whom a signal has ended, or who never was enough for a round, has waited for nobody; the others of a job that was
  // over soon may still be on their way, and would look for its coordinator in vain.
  const bool ran = memory_.started && memory_.verdict->kind != VerdictKind::stopped_by_signal;
  if (ran && answered_ + claims_.size() < expected_) latecomers_until_ = now + time_for_latecomers;
  event(event_text::verdict(memory_.round, *memory_.verdict));
  std::vector<LinkId> released;
  for (const auto& [link, seat] : members_.all()) {
    const bool took_part = seat.in_round;
    tell_the_end(link, took_part);
    if (!took_part && memory_.verdict->kind == VerdictKind::success) released.push_back(link);
  }
  for (const LinkId link : released) {
    close(link);
    members_.remove(link);
  }
  for (const Claim& claim : std::exchange(claims_, {})) {
    answer_after_the_end(claim.link);
    count_answered(claim.join);
  }
}

/// Those who took no part in a success were not needed; every other end is everybody's.
void Coordinator::State::tell_the_end(LinkId link, bool took_part) {
  if (memory_.verdict->kind == VerdictKind::success && !took_part) {
    send(link, Refused{RefusalKind::not_needed, "the job has ended well without it"});
  } else {
    send(link, *memory_.verdict);
  }
}

VerdictMessage Coordinator::State::nobody_came() const {
  const JobSettings& job = memory_.meaning;
  VerdictMessage few = causes::too_few(members_.available(), job.min_nodes, now - gathering_since_, members_.names(20));
  if (!last_cause_) return few;
  few.why = concat(last_cause_->why, "; then ", few.why);
  if (last_cause_->kind != VerdictKind::node_lost && last_cause_->kind != VerdictKind::worker_failed) return few;
  VerdictMessage cause = *last_cause_;
  cause.why = few.why;
  return cause;
}

bool Coordinator::State::done() const { return phase_ == Phase::ended && members_.empty() && !waits_for_latecomers(); }

}  // namespace ddrun::rendezvous
