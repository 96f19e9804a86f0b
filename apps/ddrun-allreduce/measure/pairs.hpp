#pragma once

#include "ddrun/collectives/communicator.hpp"
#include "measure/buffers.hpp"
#include "options/options.hpp"
#include "results.hpp"

namespace ddrun::allreduce {

/// Measures every pair of nodes, or of ranks where there is only one node: step by step, all pairs of a step at the
/// same time, each rank with the one of the same local number; those without one wait. `local_rank`: this rank's, -1 if
/// not known. Every rank makes the same calls and gets the same matrix. Fails when a peer is gone or late, and with
/// `invalid_argument` if the back end has no send_recv.
[[nodiscard]] Result<Pairs> measure_pairs(const collectives::Connected& connected, const Buffers& buffers,
                                          const Options& options, int local_rank);

/// How much each rank sends of as much as its buffers hold: 16 MiB, or all that was asked for.
[[nodiscard]] std::uint64_t pair_bytes(const Options& options, std::uint64_t room);

/// Fills in the worst pairs and the worst node of a matrix.
void find_worst(Pairs& pairs);

/// The node whose pairs have the least median of `values`, the greatest if `sign` is -1; -1 if there are but two nodes,
/// which are as bad as each other.
[[nodiscard]] int worst_node_of(const Pairs& pairs, const std::vector<double>& values, double sign);

/// For people, whole lines: the matrices (of 64 nodes at most) and the worst.
[[nodiscard]] std::string table_of(const Pairs& pairs);

}  // namespace ddrun::allreduce
