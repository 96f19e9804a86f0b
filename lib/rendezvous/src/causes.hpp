#pragma once

#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"
#include "seat.hpp"

// Why a round or a job ends, as the verdict that it would be: one sentence that names rank and host, and an exit code.

namespace ddrun::rendezvous::causes {

/// "600 s", "0.5 s".
[[nodiscard]] std::string seconds_text(Clock::duration time);

/// "1 more node", "2 more nodes".
[[nodiscard]] std::string more_nodes(int wanted);

[[nodiscard]] VerdictMessage worker_failed(const Failed& failure, const Seat& seat);
/// `how`: "the connection broke: connection reset by peer".
[[nodiscard]] VerdictMessage node_lost(const Seat& seat, const std::string& how);
[[nodiscard]] VerdictMessage left(const Seat& seat, const Leave& leave);
[[nodiscard]] VerdictMessage aborted(const Seat& seat, const Abort& abort);
/// Of a round in which some nodes have finished and `late` ones have not.
[[nodiscard]] VerdictMessage skewed(const std::vector<const Seat*>& late, Milliseconds allowed);
/// `wanted` of them were needed, `names` were there.
[[nodiscard]] VerdictMessage too_few(int here, int wanted, Clock::duration waited, const std::string& names);

}  // namespace ddrun::rendezvous::causes
