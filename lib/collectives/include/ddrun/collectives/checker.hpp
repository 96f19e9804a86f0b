#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/pattern.hpp"

namespace ddrun::collectives {

/// What a part of a rank's output has to be after a call.
struct Expected {
  std::size_t begin = 0;  ///< elements of the output
  std::size_t count = 0;
  int rank = all_ranks;     ///< whose contribution, or all ranks' reduction
  std::uint64_t first = 0;  ///< its element that comes first

  static constexpr int all_ranks = -1;
};

/// What `call` gives to `rank` if every rank's input began with element `first` of its contribution. Empty for a
/// rank that gets nothing.
[[nodiscard]] std::vector<Expected> expected_of(const Call& call, int rank, int size, std::uint64_t first);

/// Fills the memory of a call before it is made and compares every element after it: what the call gives, and what it
/// must leave alone. For calls of one collective, type and operation. Blocks only as long as Memory does.
class Checker {
 public:
  /// Behind each output there have to be so many bytes that are no part of it.
  static constexpr std::size_t guard_bytes = 64;

  /// `memory` outlives it.
  Checker(Memory& memory, int rank, int size, Collective collective, DataType type, ReduceOp op);

  /// Elements first, first + 1, … of this rank's contribution to the input; poison to an output that is elsewhere, and
  /// to the guard bytes.
  [[nodiscard]] Result<void> prepare(const Call& call, std::uint64_t first);

  /// How many elements of the output are not right, elements that had to stay as they were (the output of who is not
  /// the root, the input out of place), and bytes behind the output. `first` is that of prepare(), the same everywhere.
  [[nodiscard]] Result<std::uint64_t> count_wrong(const Call& call, std::uint64_t first);

  /// Makes the element in the middle of this rank's input one that makes results wrong.
  [[nodiscard]] Result<void> corrupt(const Call& call);

 private:
  [[nodiscard]] std::span<std::byte> input(const Call& call) const;
  [[nodiscard]] std::span<std::byte> output(const Call& call) const;
  [[nodiscard]] std::span<std::byte> guard(const Call& call) const;
  /// Whether the output lies where there is nothing of the input.
  [[nodiscard]] bool is_out_of_place(const Call& call) const;
  [[nodiscard]] const Sequence& sequence_of(int rank);

  Memory& memory_;
  int rank_;
  int size_;
  std::size_t element_;
  ExactPattern pattern_;
  Sequence poison_;
  bool corrupted_ = false;          ///< the input is not what prepare() has written
  std::map<int, Sequence> others_;  ///< contributions of other ranks, as far as needed so far
};

}  // namespace ddrun::collectives
