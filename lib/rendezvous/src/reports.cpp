#include <algorithm>

#include "causes.hpp"
#include "coordinator_state.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"
#include "stop_bound.hpp"

// What members say. Whatever belongs to an earlier round, or makes no sense now, is ignored.

namespace ddrun::rendezvous {

void Coordinator::State::receive(LinkId link, const FromAgent& message) {
  Seat* seat = members_.find(link);
  if (seat == nullptr) return;
  seat->last_heard = now;
  if (std::holds_alternative<Join>(message)) {
    close(link);
    lost(link, "it sent a second JOIN");
  } else if (const auto* pong = std::get_if<Pong>(&message)) {
    settle_by_pong(*seat, pong->number);
  } else if (phase_ != Phase::ended) {
    std::visit(
        [&](const auto& said) {
          if constexpr (requires { on(*seat, said); }) on(*seat, said);
        },
        message);
  }
}

void Coordinator::State::on(Seat& seat, const Opened& message) {
  if (phase_ != Phase::opening || message.round != memory_.round || message.port == 0) return;
  if (seat.in_round && seat.node_rank == 0) start_round(message.port);
}

void Coordinator::State::on(Seat& seat, const Failed& message) {
  // Once a round is being stopped its workers fail because others are gone: the first one is the cause.
  if (phase_ != Phase::running || message.round != memory_.round || !seat.in_round || seat.stopped) return;
  VerdictMessage cause = causes::worker_failed(message, seat);
  event(event_text::failed(message, seat.node(), cause.why));
  stop_after(std::move(cause), seat, message.may_restart);
}

void Coordinator::State::on(Seat& seat, const Succeeded& message) {
  if (phase_ != Phase::running || message.round != memory_.round || !seat.in_round) return;
  if (seat.succeeded || seat.stopped) return;
  seat.succeeded = true;
  --unsucceeded_;
  event(event_text::succeeded(memory_.round, seat.node()));
  const auto& skew = memory_.meaning.exit_skew;
  if (!any_succeeded_ && skew) skew_until_ = now + *skew;
  any_succeeded_ = true;
  if (unsucceeded_ != 0) return;
  skew_until_.reset();
  stopped_until_ = now + stop_bound(memory_.meaning);
}

void Coordinator::State::on(Seat& seat, const Stopped& message) {
  if (message.round != memory_.round || !seat.told || seat.stopped) return;
  seat.stopped = true;
  if (!message.workers.empty()) {
    if (const auto to = observer()) send(*to, NodeReport{message.round, seat.node_rank, seat.host, message.workers});
  }
  if (phase_ == Phase::stopping) {
    if (ending_->cause_link == seat.link) cause_details_.of_cause(message.cause);
    else cause_details_.of_another(seat.host, seat.node_rank, message.cause);
    one_less_to_stop();
  } else if (seat.succeeded) {
    --unfinished_;
    check_finished();
  } else {
    stop_after(causes::node_lost(seat, "it stopped its workers without saying why"), seat, true);
  }
}

void Coordinator::State::check_finished() {
  if (unfinished_ != 0) return;
  VerdictMessage verdict;
  verdict.why = "all workers have ended well";
  end(std::move(verdict));
}

void Coordinator::State::on(Seat& seat, const Leave& message) {
  if (seat.leaving) return;
  VerdictMessage cause = causes::left(seat, message);
  members_.set_leaving(seat, cause.signal);
  event(event_text::left(memory_.round, seat.node(), cause.why));
  const JobSettings& job = memory_.meaning;
  const bool in_round = seat.in_round;
  const bool over = seat.runs_coordinator || (in_round && job.fixed_size() && members_.available() < job.min_nodes) ||
                    (members_.available() == 0 && (in_round || phase_ == Phase::gathering));
  // The store of node rank 0 is needed until the round is over; the others are, once their workers are done, not.
  const bool idle = !in_round || (phase_ == Phase::running && seat.finished() && seat.node_rank != 0);
  if (idle && !seat.runs_coordinator && (in_round || members_.available() > 0 || phase_ != Phase::gathering)) {
    release(seat, cause.why);
    gather();
  } else if (over) {
    const int signal = cause.signal;
    stop_for_good(std::move(cause), &seat, signal);
  } else if (phase_ == Phase::opening || phase_ == Phase::running) {
    Ending ending;
    ending.cause_link = seat.link;
    ending.cause = std::move(cause);
    begin_stop(std::move(ending), 0);
  }
}

void Coordinator::State::on(Seat& seat, const Abort& message) {
  const bool spare = !seat.in_round && phase_ != Phase::gathering && !seat.runs_coordinator;
  if (spare && message.kind == AbortKind::cannot_go_on) {
    lose(seat, message.what, now, false);
    return;
  }
  stop_for_good(causes::aborted(seat, message), &seat, 0);
}

}  // namespace ddrun::rendezvous
