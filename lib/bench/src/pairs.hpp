#pragma once

#include <string>
#include <vector>

#include "benchmark.hpp"
#include "ddrun/bench/options.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "results.hpp"

namespace ddrun::bench {

/// Measures every pair of nodes, or of ranks on a single node. Each step measures disjoint pairs at the same time, each
/// rank with the one of equal local rank; ranks without one wait. `local_rank`: of this rank, -1 if unknown. Called on
/// every rank, with the same result. Fails if a peer is lost or a call times out, and with `invalid_argument` if the
/// back end has no send_recv.
[[nodiscard]] Result<Pairs> measure_pairs(const collectives::Connected& connected, const Buffers& buffers,
                                          const Options& options, int local_rank);

void find_worst(Pairs& pairs);

/// The node with the smallest median of `values` over its pairs (the greatest if `sign` is -1). -1 for two nodes, whose
/// medians are equal.
[[nodiscard]] int worst_node_of(const Pairs& pairs, const std::vector<double>& values, double sign);

/// The ranks of one machine, by local rank.
struct Node {
  std::string name;  ///< the host name, numbered if not unique: "host", "host#2"
  std::vector<int> ranks;
};

/// The nodes of all ranks, in the order of their first ranks. `local_ranks`: from the launcher, -1 if unknown. A rank
/// belongs to the latest node of its host, or to a new one if its local rank is taken there, as machines or containers
/// may share a name.
[[nodiscard]] std::vector<Node> nodes_of(const std::vector<collectives::Member>& members,
                                         const std::vector<int>& local_ranks);

/// Number of steps of a round-robin schedule: players - 1, or players if their number is odd, as one is idle in each
/// step.
[[nodiscard]] int round_robin_steps(int players);

/// The partner of `player` at `step`; itself if idle. Circle method (Kirkman, 1850).
[[nodiscard]] int round_robin_partner(int player, int players, int step);

}  // namespace ddrun::bench
