#pragma once

#include <cstddef>
#include <limits>
#include <memory>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "tcp/peers.hpp"

namespace ddrun::collectives {

/// A growing buffer, reused between calls. Growing discards its content.
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

/// Computes a call's partial results, of accumulator_type(). They are rounded, and averages divided, only by finish().
/// Counts are in elements.
class Accumulator {
 public:
  Accumulator(const Call& call, int ranks);

  [[nodiscard]] std::size_t element_bytes() const { return element_bytes_; }  ///< of an input or result
  [[nodiscard]] std::size_t partial_bytes() const { return partial_bytes_; }  ///< of a partial result
  /// Whether partial results have another type than the elements.
  [[nodiscard]] bool types_differ() const { return element_bytes_ != partial_bytes_; }

  void load(void* numbers, const void* in, std::size_t count) const { kernels_.load(numbers, in, count); }
  /// out = first op second, for partial results. `out` may equal either.
  void combine(void* out, const void* first, const void* second, std::size_t count) const;
  void finish(void* out, const void* numbers, std::size_t count) const { kernels_.finish(out, numbers, count, ranks_); }
  /// numbers = numbers op in, where `in` is an input.
  void accumulate(void* numbers, const void* in, std::size_t count) const { kernels_.accumulate(numbers, in, count); }
  /// out = first op second, for inputs of the accumulator's type; `finished`: this is the last step.
  void reduce(void* out, const void* first, const void* second, std::size_t count, bool finished) const;

 private:
  std::size_t element_bytes_;
  std::size_t partial_bytes_;
  int ranks_;
  const Kernels& kernels_;
  const Kernels& partial_kernels_;  ///< for partial results; avg sums until it is finished
};

/// Combines received partial results with local ones.
class ReduceOnRecv final : public RecvSink {
 public:
  /// `peer_first`: the operand order.
  ReduceOnRecv(const Accumulator& acc, std::byte* mine, bool peer_first)
      : acc_(acc), data_(mine), peer_first_(peer_first) {}
  void consume(std::size_t offset, std::byte* data, std::size_t bytes) override;

 private:
  const Accumulator& acc_;
  std::byte* data_;
  bool peer_first_;
};

/// Reduces received data with this rank's input, for the next rank of a ring or chain.
class ReduceAndForward final : public RecvSink {
 public:
  struct Operands {
    const std::byte* own = nullptr;  ///< this rank's input
    std::byte* to =
        nullptr;  ///< finished elements if `last`, else partial results; may equal `own` if the types are equal
    bool recv_partial = false;  ///< received data: partial results, or one rank's input
    bool last = false;
  };
  /// `scratch` is used if the types differ.
  ReduceAndForward(const Accumulator& acc, Scratch& scratch, const Operands& operands)
      : acc_(acc), scratch_(scratch), operands_(operands) {}
  void consume(std::size_t offset, std::byte* data, std::size_t bytes) override;

  /// Bytes of a received element.
  [[nodiscard]] std::size_t recv_bytes() const {
    return operands_.recv_partial ? acc_.partial_bytes() : acc_.element_bytes();
  }

 private:
  const Accumulator& acc_;
  Scratch& scratch_;
  Operands operands_;
};

/// Buffers shared by the algorithms.
struct Workspace {
  Scratch mine;
  Scratch theirs;
  Scratch piece;
};

// Each implements one collective with point-to-point messages; all ranks must choose the same algorithm. Elements are
// either reduced in the same order on all ranks, or by one rank that sends the result to the others, so that all have
// equal bits. Groups of two or more.

/// Recursive doubling: log2(n) steps in which pairs exchange everything.
[[nodiscard]] Result<void> all_reduce_by_doubling(Peers& peers, Workspace& ws, const Call& call);
/// Recursive halving and doubling (Rabenseifner): pairs exchange halves, each reduces the one it keeps, then
/// all-gather.
[[nodiscard]] Result<void> all_reduce_by_halving(Peers& peers, Workspace& ws, const Call& call);
/// Ring: n - 1 steps of reduce-scatter, then n - 1 steps of all-gather.
[[nodiscard]] Result<void> all_reduce_by_ring(Peers& peers, Workspace& ws, const Call& call);

/// Binomial tree: the number of ranks with the data doubles at each step.
[[nodiscard]] Result<void> broadcast_by_tree(Peers& peers, const Call& call);
/// Pipeline of pieces along all ranks.
[[nodiscard]] Result<void> broadcast_by_chain(Peers& peers, const Call& call, std::size_t piece_bytes);
[[nodiscard]] Result<void> reduce_by_tree(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> reduce_by_chain(Peers& peers, Workspace& ws, const Call& call, std::size_t piece_bytes);

/// Binomial tree: the blocks of whole subtrees at once.
[[nodiscard]] Result<void> gather_by_tree(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> scatter_by_tree(Peers& peers, Workspace& ws, const Call& call);
/// Linear: each block between its rank and the root.
[[nodiscard]] Result<void> gather_directly(Peers& peers, const Call& call);
[[nodiscard]] Result<void> scatter_directly(Peers& peers, const Call& call);

/// Bruck: at step k to the rank 2^k before, all blocks held so far.
[[nodiscard]] Result<void> all_gather_by_doubling(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> all_gather_by_ring(Peers& peers, const Call& call);

[[nodiscard]] Result<void> reduce_scatter_by_doubling(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> reduce_scatter_by_ring(Peers& peers, Workspace& ws, const Call& call);

/// In each round every rank exchanges blocks with at most one partner.
[[nodiscard]] Result<void> all_to_all_by_pairs(Peers& peers, Workspace& ws, const Call& call);
[[nodiscard]] Result<void> send_and_receive(Peers& peers, Workspace& ws, const Call& call);
/// At step k to the rank 2^k after, from the one 2^k before.
[[nodiscard]] Result<void> dissemination_barrier(Peers& peers);

/// Size limits of the algorithms, in bytes. Equal on all ranks.
struct Plan {
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  std::size_t doubling = 0;             ///< all_reduce: of the input; also reduce_scatter: of all blocks
  std::size_t halving = 0;              ///< all_reduce above that; beyond: ring
  std::size_t tree = 0;                 ///< broadcast and reduce: of the input; beyond: chain
  std::size_t block_tree = 0;           ///< gather and scatter: of a block; beyond: linear
  std::size_t all_gather = 0;           ///< all_gather: of a block; beyond: ring
  std::size_t chain_piece = 256 << 10;  ///< a multiple of every element size
};

/// The default plan for a group of `ranks`.
[[nodiscard]] Plan plan_for(int ranks);

/// Makes the call with the algorithms of `plan`.
[[nodiscard]] Result<void> perform(Peers& peers, Workspace& ws, const Plan& plan, const Call& call);

}  // namespace ddrun::collectives
