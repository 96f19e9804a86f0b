#pragma once

#include <string>
#include <variant>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// The workers of this round may start.
struct RoundBegins {
  Round round;
  RankAssignment ranks;
};
/// The current round is over.
struct StopOrder {
  bool another_round;
  std::string why;
  int signal;  ///< for the workers; 0: SIGTERM
  /// From SIGTERM to SIGKILL, where the configured grace time is longer.
  Milliseconds max_grace = Milliseconds::max();
};
/// The job goes on without this node, or has ended. Nothing follows.
struct CoordinatorLost {
  std::string why;  ///< one sentence
};

/// What the member of a job tells its agent. VerdictMessage: the job is over, nothing follows. PassSignal: for the
/// workers of the current round. Waiting: on one machine, for a restart that is decided. Exchanged: of the current
/// round, in the order of tags and node ranks.
using ToAgent =
    std::variant<RoundBegins, StopOrder, VerdictMessage, CoordinatorLost, Log, PassSignal, Waiting, Exchanged>;

}  // namespace ddrun::rendezvous
