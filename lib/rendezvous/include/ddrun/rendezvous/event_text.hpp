#pragma once

#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/rendezvous/messages.hpp"

// The lines of --events, without the time: docs/schemas/events.schema.json. Written by the coordinator of a job
// on several machines, and by the agent of a job on one.

namespace ddrun::rendezvous::event_text {

/// Subject of an event.
struct Node {
  std::string host;
  std::string address;
  int node_rank = -1;  ///< -1: not in the round
};

/// `last`: the last round begun; 0: none.
[[nodiscard]] std::string joined(Round last, const Node& node, int local_world_size, int nodes, bool spare);
[[nodiscard]] std::string waiting(Round last, int nodes, int min_nodes, int max_nodes, const std::string& waiting_for);
/// `hosts`: in order of node rank.
[[nodiscard]] std::string round(Round number, int restarts, int world_size, const std::string& address,
                                const std::vector<std::string>& hosts);
[[nodiscard]] std::string started(Round number, int restarts, int nodes);
/// All workers of the node ended with success.
[[nodiscard]] std::string succeeded(Round number, const Node& node);
/// The round is being stopped; `another`: one more follows.
[[nodiscard]] std::string ended(Round number, bool another, const std::string& why);
[[nodiscard]] std::string failed(const Failed& failure, const Node& node, const std::string& why);
[[nodiscard]] std::string lost(Round number, const Node& node, const std::string& why);
[[nodiscard]] std::string left(Round number, const Node& node, const std::string& why);
[[nodiscard]] std::string restart(Round number, int restarts, int max_restarts, Milliseconds pause,
                                  const std::string& why);
/// `failures`: rounds that workers of this host have failed.
[[nodiscard]] std::string excluded(Round number, const Node& node, int failures);
[[nodiscard]] std::string refused(Round last, const std::string& host, const std::string& address,
                                  const std::string& why);
/// This coordinator stepped down; another one follows.
[[nodiscard]] std::string moved(Round last, const std::string& why);
[[nodiscard]] std::string verdict(Round number, const VerdictMessage& verdict);

/// "worker_failed"
[[nodiscard]] const char* name(VerdictKind kind);

}  // namespace ddrun::rendezvous::event_text
