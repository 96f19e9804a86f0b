#pragma once

#include <algorithm>

#include "ddrun/base/duration.hpp"

/// The waits of a stop, from the innermost to the outermost. A margin is added to the grace time; a timeout starts at
/// SIGKILL, at a repeated signal or where its user says. A wait is longer than those inside it, or it would cut off
/// what they report.
namespace ddrun::shutdown {

// Workers and their agent
inline constexpr Milliseconds owner_margin{500};           ///< until its connection's thread acts for a blocked agent
inline constexpr Milliseconds sweeper_margin{250};         ///< after that until the sweeper acts for a stopped agent
inline constexpr Milliseconds console_stall_limit{1'000};  ///< until a console that takes no output is given up
inline constexpr Milliseconds kill_timeout{10'000};        ///< until processes that SIGKILL did not end are given up
inline constexpr Milliseconds agent_timeout{15'000};  ///< until its sweeper kills it; a margin if the guard is dead
// Members and their coordinator
inline constexpr Milliseconds lost_sight_grace{5'000};  ///< at most, for workers of a member that lost its coordinator
inline constexpr Milliseconds kill_margin{1'000};       ///< until workers of a lost member count as killed
inline constexpr Milliseconds stop_margin{30'000};      ///< until a member that has not sent STOPPED is lost
inline constexpr Milliseconds verdict_timeout{5'000};   ///< until members that do not read the verdict are given up
inline constexpr Milliseconds close_timeout{6'000};     ///< until an agent gives up its coordinator
inline constexpr Milliseconds resign_timeout{1'000};    ///< until the lease is left to expire
// Hosts and their head (--hosts), agents and their srun
inline constexpr Milliseconds relay_output_limit{20'000};  ///< until open pipes, then a slow ssh, are given up
inline constexpr Milliseconds node_margin{20'000};         ///< until a relay without head kills the guard
inline constexpr Milliseconds head_close_timeout{5'000};   ///< until ssh is given up
inline constexpr Milliseconds head_kill_timeout{12'000};   ///< until the connections are cut after a repeated signal
inline constexpr Milliseconds head_margin{40'000};         ///< until the connections are cut
inline constexpr Milliseconds srun_margin{30'000};         ///< until agent_timeout begins above srun

/// Grace time of workers whose agent has lost sight of its coordinator: the next round waits no longer for them, unless
/// the user has set how long (--fence).
[[nodiscard]] constexpr Milliseconds grace_out_of_sight(Milliseconds grace, bool has_fence) {
  return has_fence ? grace : std::min(grace, lost_sight_grace);
}

static_assert(kill_margin > owner_margin + sweeper_margin,
              "no worker of a blocked or stopped agent meets the next round");
static_assert(agent_timeout > kill_timeout + console_stall_limit, "the agent names the processes that SIGKILL left");
static_assert(stop_margin > agent_timeout, "a killed agent is named as that, not as one that did not stop");
static_assert(close_timeout > verdict_timeout, "the coordinator itself gives up agents that do not read the verdict");
static_assert(node_margin > agent_timeout, "a relay whose guard was killed sees its sweeper's end");
static_assert(head_kill_timeout > kill_timeout + console_stall_limit, "each host names what SIGKILL left");
static_assert(head_kill_timeout < agent_timeout, "the head ends the hosts before its own sweeper kills it");
static_assert(head_close_timeout + console_stall_limit < agent_timeout, "the same once the guard is dead");
static_assert(head_margin > kill_timeout + relay_output_limit, "a host's end arrives though its pipes are held open");
static_assert(head_margin > stop_margin + close_timeout + resign_timeout, "only the host that does not stop is named");
static_assert(srun_margin + agent_timeout > stop_margin + close_timeout + resign_timeout, "the same with srun");

}  // namespace ddrun::shutdown
