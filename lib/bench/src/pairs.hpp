#pragma once

#include <string>
#include <vector>

#include "benchmark.hpp"
#include "ddrun/bench/options.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "results.hpp"

namespace ddrun::bench {

/// Measures every pair of nodes, or of ranks where there is only one node: step by step, all pairs of a step at the
/// same time, each rank with the one of the same local number; those without one wait. `local_rank`: this rank's, -1 if
/// not known. Every rank makes the same calls and gets the same matrix. Fails when a peer is gone or late, and with
/// `invalid_argument` if the back end has no send_recv.
[[nodiscard]] Result<Pairs> measure_pairs(const collectives::Connected& connected, const Buffers& buffers,
                                          const Options& options, int local_rank);

/// Fills in the worst pairs and the worst node of a matrix.
void find_worst(Pairs& pairs);

/// The node whose pairs have the least median of `values`, the greatest if `sign` is -1; -1 if there are but two nodes,
/// which are as bad as each other.
[[nodiscard]] int worst_node_of(const Pairs& pairs, const std::vector<double>& values, double sign);

/// Ranks of one machine, by their number on it.
struct Node {
  std::string name;  ///< the host's; of several with the same name, with a number: "host", "host#2"
  std::vector<int> ranks;
};

/// The nodes of all ranks, in the order of their first ranks. `local_ranks`: as launchers say them, -1 where they do
/// not. A rank belongs to the last node of its host, or to a new one where its local rank is taken: two machines, or
/// containers, may share a name.
[[nodiscard]] std::vector<Node> nodes_of(const std::vector<collectives::Member>& members,
                                         const std::vector<int>& local_ranks);

/// How many steps it takes until each of `players` has met each other one, when all pairs of a step meet at the same
/// time: players - 1, of an odd number players, as one is left over each time.
[[nodiscard]] int round_robin_steps(int players);

/// The one that `player` meets at `step`; itself: none. Kirkman's schedule of 1850, the circle method.
[[nodiscard]] int round_robin_partner(int player, int players, int step);

}  // namespace ddrun::bench
