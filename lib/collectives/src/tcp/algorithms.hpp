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
class Partial {
 public:
  Partial(const Call& call, int ranks);

  [[nodiscard]] std::size_t element() const { return element_; }  ///< bytes of an input's or result's
  [[nodiscard]] std::size_t number() const { return number_; }    ///< bytes of a partial result's
  /// Whether the two are different.
  [[nodiscard]] bool apart() const { return element_ != number_; }

  void load(void* numbers, const void* in, std::size_t count) const { loops_.load(numbers, in, count); }
  /// out = first op second, of numbers. `out` may be either of them.
  void merge(void* out, const void* first, const void* second, std::size_t count) const;
  void finish(void* out, const void* numbers, std::size_t count) const { loops_.finish(out, numbers, count, ranks_); }
  /// numbers = numbers op in, with an input.
  void accumulate(void* numbers, const void* in, std::size_t count) const { loops_.accumulate(numbers, in, count); }
  /// out = first op second, of inputs that are of the accumulator's type; `finished` if nothing comes after it.
  void reduce(void* out, const void* first, const void* second, std::size_t count, bool finished) const;

 private:
  std::size_t element_;
  std::size_t number_;
  int ranks_;
  const Kernels& loops_;
  const Kernels& on_the_way_;  ///< of numbers; an average is a sum until it is finished
};

/// Merges numbers that arrive into those that are there.
class Merging final : public Arrival {
 public:
  /// `theirs_first`: the order of the operation.
  Merging(const Partial& partial, std::byte* mine, bool theirs_first)
      : partial_(partial), mine_(mine), theirs_first_(theirs_first) {}
  void take(std::size_t offset, std::byte* data, std::size_t bytes) override;

 private:
  const Partial& partial_;
  std::byte* mine_;
  bool theirs_first_;
};

/// Reduces what arrives, the inputs of the ranks so far, with this rank's own, on its way to the next.
class Passing final : public Arrival {
 public:
  struct Places {
    const std::byte* own = nullptr;  ///< this rank's input
    std::byte* to = nullptr;         ///< finished elements if `last`, else numbers; may be `own` if types are alike
    bool numbers = false;            ///< what arrives: numbers, or one rank's input
    bool last = false;
  };
  /// `scratch` is used where types differ.
  Passing(const Partial& partial, Scratch& scratch, const Places& places)
      : partial_(partial), scratch_(scratch), places_(places) {}
  void take(std::size_t offset, std::byte* data, std::size_t bytes) override;

  /// Bytes of an arriving element.
  [[nodiscard]] std::size_t arriving() const { return places_.numbers ? partial_.number() : partial_.element(); }

 private:
  const Partial& partial_;
  Scratch& scratch_;
  Places places_;
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
[[nodiscard]] Result<void> meet(Peers& peers);

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
