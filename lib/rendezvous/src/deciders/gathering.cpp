#include "gathering.hpp"

#include <algorithm>
#include <utility>

#include "causes.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::rendezvous {

void Gathering::reset() {
  job_.deadlines.clear(Due::join);
  job_.deadlines.clear(Due::last_call);
  join_until_.reset();
  last_call_over_ = false;
  last_cause_.reset();
}

bool Gathering::awaits_claims() {
  auto& deadlines = job_.deadlines;
  const int available = job_.members.available();
  if (!join_until_) join_until_ = deadlines.at(Due::pause).value_or(job_.now) + job_.settings.join_timeout;
  if (available < job_.settings.min_nodes) deadlines.arm(Due::join, *join_until_);
  else deadlines.clear(Due::join);
  const auto until = std::max(job_.succession.wait_until(job_.now, available >= job_.settings.max_nodes),
                              job_.succession.awaits_orphans_until(job_.now));
  if (until) deadlines.arm(Due::claims, *until);
  else deadlines.clear(Due::claims);
  return until.has_value();
}

std::optional<VerdictMessage> Gathering::recover(const Succession::LastRound& round) {
  const RoundClaim& last = round.claim;
  if (last.term == 0) return std::nullopt;  // no round was ever started
  job_.round = std::max(job_.round, last.round);
  job_.started = true;
  job_.merge(last.job_state, job_.now);
  if (round.succeeded) {
    for (const LinkId link : round.members) {
      // They took part in the successful round.
      if (Member* member = job_.members.find(link)) member->part = Part::finished;
    }
    return causes::success();
  }
  VerdictMessage cause{.kind = VerdictKind::node_lost,
                       .exit_code = exit_codes::launcher_failed,
                       .why = "the coordinator of the round before was lost"};
  if (!last.moved) {
    if (!job_.can_restart()) {
      if (job_.budget.used() > 0) cause.why += "; no restart is left";
      return cause;
    }
    spend_restart(cause.why);
  }
  last_cause_ = std::move(cause);
  return std::nullopt;
}

bool Gathering::is_complete() {
  auto& deadlines = job_.deadlines;
  const int available = job_.members.available();
  if (available < job_.settings.min_nodes) {
    deadlines.clear(Due::last_call);
    last_call_over_ = false;
    return false;
  }
  if (deadlines.is_armed(Due::pause) || is_held_up()) return false;
  const int expected = job_.options.first_round_nodes;
  const bool all_expected = expected > 0 && available >= expected;
  const auto last_call = job_.settings.last_call;
  const bool last_call_over = job_.started || last_call_over_ || last_call.count() == 0 || all_expected;
  if (available >= job_.settings.max_nodes || last_call_over) return true;
  if (!deadlines.is_armed(Due::last_call)) deadlines.arm(Due::last_call, job_.now + last_call);
  return false;
}

void Gathering::note_ended(VerdictMessage cause, bool had_started) {
  if (had_started) join_until_.reset();
  last_cause_ = std::move(cause);
}

void Gathering::spend_restart(const std::string& why) {
  job_.succession.owe_restart();
  const Milliseconds pause = job_.budget.spend(job_.now);
  if (pause.count() > 0) job_.deadlines.arm(Due::pause, job_.now + pause);
  job_.event(event_text::restart, job_.round, job_.budget.used(), job_.settings.restart.max_restarts, pause, why);
}

void Gathering::fence(const Member& gone, Clock::time_point since) {
  const Clock::time_point until = since + job_.fence_time(gone);
  if (until <= job_.now || job_.deadlines.at(Due::fence).value_or(job_.now) >= until) return;
  job_.deadlines.arm(Due::fence, until);
  fenced_ = describe_with_rank(gone);
}

std::string Gathering::wait_reason() const {
  const int wanted = job_.settings.min_nodes - job_.members.available();
  if (wanted > 0) return causes::more_nodes(wanted);
  if (job_.succession.expects_claims()) return "the others of the last round";
  if (job_.succession.awaits_orphans_until(job_.now)) {
    return "the other machines of the job before, or the end of its workers there";
  }
  if (job_.succession.is_suspended()) return "the lease, which cannot be renewed at the moment";
  if (const auto until = job_.deadlines.at(Due::fence)) {
    return concat("the end of workers that may still run on ", fenced_, ", for ",
                  causes::seconds_text(*until - job_.now), " (--fence)");
  }
  return job_.deadlines.is_armed(Due::pause) ? "the end of the pause before the restart" : "the end of the last call";
}

VerdictMessage Gathering::too_few_verdict(const std::string& turned_away) const {
  const JobSettings& settings = job_.settings;
  VerdictMessage few =
      causes::too_few(job_.members.available(), settings.min_nodes, settings.join_timeout, job_.members.names(20));
  few.why += turned_away;
  if (turned_away.empty() && !last_cause_) {
    few.why += "; look at what ddrun says on the others, and whether they reach the coordinator's port on " +
               job_.options.host;
  }
  if (!last_cause_) return few;
  few.why = concat(last_cause_->why, "; then ", few.why);
  if (last_cause_->kind != VerdictKind::node_lost && last_cause_->kind != VerdictKind::worker_failed) return few;
  VerdictMessage cause = *last_cause_;
  cause.why = few.why;
  return cause;
}

}  // namespace ddrun::rendezvous
