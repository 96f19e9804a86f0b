#include <utility>

#include "causes.hpp"
#include "coordinator_state.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "stop_bound.hpp"

namespace ddrun::rendezvous {

/// Somebody joins: the members meet again, which uses up nothing.
void Coordinator::State::meet_again(const std::string& why) {
  Ending ending;
  ending.cause.kind = VerdictKind::launcher_failed;
  ending.cause.why = why;
  begin_stop(std::move(ending), 0);
}

void Coordinator::State::stop_after(VerdictMessage cause, const Seat& seat, bool may_restart) {
  Ending ending;
  ending.uses_restart = may_restart && memory_.budget.any_left(now);
  ending.for_good = !ending.uses_restart;
  if (may_restart && ending.for_good && memory_.budget.used() > 0) cause.why += "; no restart is left";
  ending.cause = std::move(cause);
  ending.cause_link = seat.link;
  begin_stop(std::move(ending), 0);
}

void Coordinator::State::stop_for_good(VerdictMessage cause, const Seat* seat, int signal) {
  switch (phase_) {
    case Phase::gathering: end(std::move(cause)); break;
    case Phase::opening:
    case Phase::running: {
      Ending ending;
      ending.cause = std::move(cause);
      ending.for_good = true;
      ending.cause_link = seat != nullptr ? seat->link : 0;
      begin_stop(std::move(ending), signal);
      break;
    }
    case Phase::stopping:
      if (ending_->for_good) break;
      ending_->for_good = true;
      ending_->cause = std::move(cause);
      ending_->cause_link = seat != nullptr ? seat->link : 0;
      cause_details_.clear();
      break;
    case Phase::ended: break;
  }
}

void Coordinator::State::begin_stop(Ending ending, int signal) {
  ending.since = now;
  ending.had_started = phase_ == Phase::running;
  phase_ = Phase::stopping;
  opened_until_.reset();
  skew_until_.reset();
  stopped_until_ = now + stop_bound(memory_.meaning);
  cause_details_.clear();
  to_stop_ = 0;
  Stop stop{memory_.round, !ending.for_good, ending.cause.why, signal};
  if (ending.uses_restart) {
    stop.why += concat("; restarting all workers (restart ", memory_.budget.used() + 1, " of ",
                       memory_.meaning.restart.max_restarts, ")");
  }
  ending_ = std::move(ending);
  event(event_text::ended(memory_.round, stop.another_round, stop.why));
  for (const LinkId link : round_links_) {
    const Seat* seat = members_.find(link);
    if (seat == nullptr || !seat->told) continue;
    send(link, stop);
    if (!seat->stopped) ++to_stop_;
  }
  if (to_stop_ == 0) all_stopped();
}

void Coordinator::State::one_less_to_stop() {
  if (--to_stop_ == 0) all_stopped();
}

void Coordinator::State::all_stopped() {
  Ending ending = std::move(*ending_);
  ending_.reset();
  stopped_until_.reset();
  if (ending.for_good) {
    ending.cause.cause = cause_details_.text();
    end(std::move(ending.cause));
    return;
  }
  std::vector<LinkId> leavers;
  for (const LinkId link : round_links_) {
    Seat* seat = members_.find(link);
    if (seat == nullptr) continue;
    seat->in_round = seat->told = false;
    if (seat->leaving) leavers.push_back(link);
  }
  phase_ = Phase::gathering;
  if (ending.had_started) join_until_.reset();
  if (ending.uses_restart) {
    const Milliseconds pause = memory_.budget.spend(now);
    if (pause.count() > 0) pause_until_ = now + pause;
    event(event_text::restart(memory_.round, memory_.budget.used(), memory_.meaning.restart.max_restarts, pause,
                              ending.cause.why));
  }
  last_cause_ = ending.cause;
  last_cause_->cause = cause_details_.text();
  for (const LinkId link : leavers) {
    if (Seat* seat = members_.find(link))
      release(*seat, concat("left the job after ", signal_name(seat->leave_signal)));
  }
  if (ending.cause.kind == VerdictKind::worker_failed) leave_out(ending.cause.host);
  gather();
  const int here = members_.available();
  if (phase_ != Phase::gathering || here >= memory_.meaning.min_nodes) return;
  const std::string what_for =
      concat(causes::more_nodes(memory_.meaning.min_nodes - here), ", after ", ending.cause.why);
  event(event_text::waiting(here, memory_.meaning.min_nodes, memory_.meaning.max_nodes, what_for));
  for (auto& [link, seat] : members_.all()) tell_waiting(seat, seat.benched, what_for);
}

/// The workers of `host` were the cause once more.
void Coordinator::State::leave_out(const std::string& host) {
  if (memory_.meaning.node_max_failures == 0) return;
  const int failures = ++memory_.failures_of_host[host];
  if (!memory_.excluded(host)) return;
  std::vector<LinkId> offenders;
  for (const auto& [link, seat] : members_.all()) {
    if (seat.host == host && !seat.benched) offenders.push_back(link);
  }
  for (const LinkId link : offenders) {
    Seat* seat = members_.find(link);
    if (seat == nullptr) continue;
    event(event_text::excluded(memory_.round, seat->node(), failures));
    if (seat->runs_coordinator) {
      // Without it nobody would be coordinated: it stays, but only looks on.
      members_.set_benched(*seat);
      tell_waiting(*seat, true, concat("the others, since the workers of ", host, " failed ", failures, " times"));
    } else {
      release(*seat, concat(host, " is left out: its workers failed ", failures, " times (--node-max-failures)"));
    }
  }
}

}  // namespace ddrun::rendezvous
