#pragma once

#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"

// The lines of --events, without the time: lib/rendezvous/PROTOCOL.md, section 8. Said by the coordinator of a job on
// several machines, and by the agent of a job on one.

namespace ddrun::rendezvous::event_text {

/// Whom an event is about.
struct Node {
  std::string host;
  std::string address;
  int node_rank = -1;  ///< -1: not in the round
};

/// `last`: the round that was begun last; 0: none yet.
[[nodiscard]] std::string joined(Round last, const Node& node, int local_world_size, int nodes, bool spare);
[[nodiscard]] std::string waiting(Round last, int nodes, int min_nodes, int max_nodes, const std::string& waiting_for);
/// `hosts`: in order of node rank.
[[nodiscard]] std::string round(Round number, int restarts, int world_size, const std::string& address,
                                const std::vector<std::string>& hosts);
[[nodiscard]] std::string started(Round number, int restarts, int nodes);
/// The workers of one node have all ended well.
[[nodiscard]] std::string succeeded(Round number, const Node& node);
/// A round is to end; `another`: one more follows.
[[nodiscard]] std::string ended(Round number, bool another, const std::string& why);
[[nodiscard]] std::string failed(const Failed& failure, const Node& node, const std::string& why);
[[nodiscard]] std::string lost(Round number, const Node& node, const std::string& why);
[[nodiscard]] std::string left(Round number, const Node& node, const std::string& why);
/// Its agent answers, but the agent's main thread has not come round for so long; and that it has again, after all
/// that.
[[nodiscard]] std::string restart(Round number, int restarts, int max_restarts, Milliseconds pause,
                                  const std::string& why);
/// A newcomer waits, as agents of its host have gone out of so many rounds.
[[nodiscard]] std::string excluded(Round number, const Node& node, int failures);
[[nodiscard]] std::string refused(Round last, const std::string& host, const std::string& address,
                                  const std::string& why);
/// This coordinator leads the job no more, and there will be another one.
[[nodiscard]] std::string moved(Round last, const std::string& why);
[[nodiscard]] std::string verdict(Round number, const VerdictMessage& verdict);

/// "worker_failed"
[[nodiscard]] const char* name(VerdictKind kind);

}  // namespace ddrun::rendezvous::event_text
