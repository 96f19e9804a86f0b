#pragma once

#include <functional>

#include "ddrun/collectives/communicator.hpp"
#include "two_level/team.hpp"

namespace ddrun::collectives {

/// Finds what all ranks are to say about a failure that each of them sees in its own way: some see the cause, others
/// only that a neighbour has given up. Whoever fails says so, in its team's memory and in the store, before it leaves.
///
/// Of calls that differ, and of ranks that did not come, each rank sees only a part, too: those that have failed tell
/// each other what they were called for. `call_number` is that of the call, equal on ranks that wait for each other.
/// `certain`: nobody else can know better. Blocks for a second or two at most. `hang_up` closes this rank's connections
/// to other hosts.
[[nodiscard]] Error first_cause(Error mine, const Group& group, TwoLevelTeam& team, const Call& call,
                                std::uint64_t call_number, bool certain, const std::function<void()>& hang_up);

}  // namespace ddrun::collectives
