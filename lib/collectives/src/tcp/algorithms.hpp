#pragma once

#include <cstddef>
#include <limits>
#include <memory>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "tcp/peers.hpp"

namespace ddrun::collectives {

/// Memory that grows and is used again by the next call. Its content is lost when it grows.
class Scratch {
 public:
  [[nodiscard]] std::byte* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      data_.reset(new std::byte[bytes]);
      bytes_ = bytes;
    }
    return data_.get();
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  std::size_t bytes_ = 0;
};

/// How a call's partial results are made: numbers of accumulator_type(), which are rounded, and averages divided, only
/// when they are finished. Counts are elements.
class Accumulator {
 public:
  Accumulator(const Call& call, int ranks);

  [[nodiscard]] std::size_t element_bytes() const { return element_bytes_; }  ///< bytes of an input's or result's
  [[nodiscard]] std::size_t partial_bytes() const { return partial_bytes_; }  ///< bytes of a partial result's
  /// Whether the two are different.
  [[nodiscard]] bool types_differ() const { return element_bytes_ != partial_bytes_; }

  void load(void* numbers, const void* in, std::size_t count) const { kernels_.load(numbers, in, count); }
  /// out = first op second, of numbers. `out` may be either of them.
  void combine(void* out, const void* first, const void* second, std::size_t count) const;
  void finish(void* out, const void* numbers, std::size_t count) const { kernels_.finish(out, numbers, count, ranks_); }
  /// numbers = numbers op in, with an input.
  void accumulate(void* numbers, const void* in, std::size_t count) const { kernels_.accumulate(numbers, in, count); }
  /// out = first op second, of inputs that are of the accumulator's type; `finished` if nothing comes after it.
  void reduce(void* out, const void* first, const void* second, std::size_t count, bool finished) const;

 private:
  std::size_t element_bytes_;
  std::size_t partial_bytes_;
  int ranks_;
  const Kernels& kernels_;
  const Kernels& partial_kernels_;  ///< of numbers; an average is a sum until it is finished
};

/// Merges numbers that arrive into those that are there.
class ReduceOnRecv final : public RecvSink {
 public:
  /// `theirs_first`: the order of the operation.
  ReduceOnRecv(const Accumulator& accumulator, std::byte* mine, bool peer_first)
      : accumulator_(accumulator), data_(mine), peer_first_(peer_first) {}
  void consume(std::size_t offset, std::byte* data, std::size_t bytes) override;

 private:
  const Accumulator& accumulator_;
  std::byte* data_;
  bool peer_first_;
};

/// Reduces what arrives, the inputs of the ranks so far, with this rank's own, on its way to the next.
class ReduceAndForward final : public RecvSink {
 public:
  struct Operands {
    const std::byte* own = nullptr;  ///< this rank's input
    std::byte* to = nullptr;         ///< finished elements if `last`, else numbers; may be `own` if types are alike
    bool recv_partial = false;       ///< what arrives: numbers, or one rank's input
    bool last = false;
  };
  /// `scratch` is used where types differ.
  ReduceAndForward(const Accumulator& accumulator, Scratch& scratch, const Operands& operands)
      : accumulator_(accumulator), scratch_(scratch), operands_(operands) {}
  void consume(std::size_t offset, std::byte* data, std::size_t bytes) override;

  /// Bytes of an arriving element.
  [[nodiscard]] std::size_t recv_element_bytes() const {
    return operands_.recv_partial ? accumulator_.partial_bytes() : accumulator_.element_bytes();
  }

 private:
  const Accumulator& accumulator_;
  Scratch& scratch_;
  Operands operands_;
};

/// Memory that the algorithms share.
struct Workspace {
  Scratch mine;
  Scratch theirs;
  Scratch piece;
};

// Each makes one kind of call with messages between the ranks; every rank must choose the same one. The order in which
// elements are reduced is the same on all ranks, or only one of them reduces an element and tells the others, so that
// all have the same bits. Groups of two or more.

/// log2(n) steps in which pairs swap all they have.
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
[[nodiscard]] Result<void> dissemination_barrier(Peers& peers);

/// Up to how many bytes which algorithm is taken. The same on all ranks.
struct Plan {
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  std::size_t doubling = 0;             ///< all_reduce: of an input; also reduce_scatter: of all blocks
  std::size_t halving = 0;              ///< all_reduce above that; then the ring
  std::size_t tree = 0;                 ///< broadcast and reduce, of an input; then the chain
  std::size_t block_tree = 0;           ///< gather and scatter, of a block; then directly
  std::size_t all_gather = 0;           ///< all_gather by doubling, of a block; then the ring
  std::size_t chain_piece = 256 << 10;  ///< whole elements of every type
};

/// For a group of that size.
[[nodiscard]] Plan plan_for(int ranks);

/// The call, as the plan says.
[[nodiscard]] Result<void> perform(Peers& peers, Workspace& ws, const Plan& plan, const Call& call);

}  // namespace ddrun::collectives
