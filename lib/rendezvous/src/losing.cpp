#include <utility>

#include "causes.hpp"
#include "coordinator_state.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/event_text.hpp"

namespace ddrun::rendezvous {

void Coordinator::State::lost(LinkId link, const std::string& how) {
  if (drop_claim(link)) return;
  Seat* seat = members_.find(link);
  if (seat == nullptr) return;
  if (phase_ == Phase::ended) members_.remove(link);
  else lose(*seat, how, now, true);
}

/// `since`: when it was last known to be there. A link that is not broken is told and closed.
void Coordinator::State::lose(Seat& seat, const std::string& how, Clock::time_point since, bool broken) {
  const Seat gone = seat;
  members_.remove(gone.link);
  VerdictMessage cause = causes::node_lost(gone, how);
  if (!broken) refuse(gone.link, RefusalKind::for_good, cause.why);
  event(event_text::lost(memory_.round, gone.node(), cause.why));
  // One that had finished is not missed, unless the store was with it.
  const bool missed = gone.in_round && !(gone.finished() && gone.node_rank != 0);
  switch (phase_) {
    case Phase::gathering: gather(); break;
    case Phase::opening:
      if (missed) {
        Ending ending;
        ending.cause = std::move(cause);
        begin_stop(std::move(ending), 0);
      }
      break;
    case Phase::running:
      if (missed) stop_after(std::move(cause), gone, true);
      break;
    case Phase::stopping:
      if (gone.in_round && gone.told && !gone.stopped) lost_while_stopping(std::move(cause), since, broken);
      break;
    case Phase::ended: break;
  }
  settle_by_loss(gone.link);
}

void Coordinator::State::lost_while_stopping(VerdictMessage cause, Clock::time_point since, bool broken) {
  Ending& ending = *ending_;
  if (ending.cause.kind == VerdictKind::worker_failed) {
    // Workers elsewhere fail as soon as those of a lost node are gone, and that may be heard before the loss is
    // noticed.
    const bool came_first = broken ? now - ending.since <= heartbeat_.interval() : since <= ending.since;
    if (came_first) {
      cause.why = concat(cause.why, "; at the same time ", ending.cause.why);
      ending.cause = std::move(cause);
      ending.cause_link = 0;
      cause_details_.clear();
    }
  } else if (!ending.for_good && !ending.uses_restart && ending.had_started) {
    ending.uses_restart = memory_.budget.any_left(now);
    ending.for_good = !ending.uses_restart;
    ending.cause = std::move(cause);
    ending.cause_link = 0;
  }
  one_less_to_stop();
}

/// It leaves, and the job goes on without it.
void Coordinator::State::release(Seat& seat, const std::string& why) {
  const LinkId link = seat.link;
  refuse(link, RefusalKind::for_good, why);
  members_.remove(link);
  settle_by_loss(link);
}

}  // namespace ddrun::rendezvous
