#pragma once

#include <array>

#include "ddrun/collectives/communicator.hpp"
#include "tcp/partial.hpp"
#include "tcp/peers.hpp"
#include "tcp/plan.hpp"

namespace ddrun::collectives {

/// Memory that the algorithms share.
struct Workspace {
  Scratch mine;
  Scratch theirs;
  Scratch piece;
};

// Each makes one kind of call with messages between the ranks; every rank must choose the same one. The order in which
// elements are reduced is the same on all ranks, or only one of them reduces an element and tells the others, so that
// all have the same bits. Groups of two or more.

/// Everybody has everything reduced: log2(n) steps in which pairs swap all they have. Returns in `ws.mine` numbers of
/// Partial; `in` has `count` elements, whatever the call's count is.
[[nodiscard]] Result<void> reduce_by_doubling(Peers& peers, Workspace& ws, const Partial& partial, const std::byte* in,
                                              std::size_t count);

[[nodiscard]] Result<void> all_reduce_by_doubling(Peers& peers, Workspace& ws, const Call& call);
/// Pairs swap halves of halves, each reducing the one it keeps, then the way back (Rabenseifner).
[[nodiscard]] Result<void> all_reduce_by_halving(Peers& peers, Workspace& ws, const Call& call);
/// n - 1 steps in which each rank hands on one n-th, reduced as far as it has come, then n - 1 for the finished parts.
[[nodiscard]] Result<void> all_reduce_by_ring(Peers& peers, Workspace& ws, const Call& call);

/// All of it to those who have nothing yet, twice as many at each step.
[[nodiscard]] Result<void> broadcast_by_tree(Peers& peers, const Call& call);
/// Pieces, one after the other, along all ranks.
[[nodiscard]] Result<void> broadcast_by_chain(Peers& peers, const Call& call, std::size_t piece_bytes);
[[nodiscard]] Result<void> reduce_by_tree(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> reduce_by_chain(Peers& peers, Workspace& ws, const Call& call, std::size_t piece_bytes);

/// Whole subtrees' blocks at once.
[[nodiscard]] Result<void> gather_by_tree(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> scatter_by_tree(Peers& peers, Workspace& ws, const Call& call);
/// Each block for itself.
[[nodiscard]] Result<void> gather_directly(Peers& peers, const Call& call);
[[nodiscard]] Result<void> scatter_directly(Peers& peers, const Call& call);

/// Everything that is there to the rank so and so many places before, twice as much at each step (Bruck).
[[nodiscard]] Result<void> all_gather_by_doubling(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> all_gather_by_ring(Peers& peers, const Call& call);

[[nodiscard]] Result<void> reduce_scatter_by_doubling(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> reduce_scatter_by_ring(Peers& peers, Workspace& ws, const Call& call);

/// Each pair swaps its two blocks, in rounds that have every rank in one pair at most.
[[nodiscard]] Result<void> all_to_all_by_pairs(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> send_and_receive(Peers& peers, Workspace& ws, const Call& call);
/// To the rank 1, 2, 4, … places further, from the one as many before: who has heard from all of them knows of all.
[[nodiscard]] Result<void> meet(Peers& peers);

/// The call, as the plan says.
[[nodiscard]] Result<void> perform(Peers& peers, Workspace& ws, const Plan& plan, const Call& call);

}  // namespace ddrun::collectives
