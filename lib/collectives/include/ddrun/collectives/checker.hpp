#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/pattern.hpp"

namespace ddrun::collectives {

/// The expected content of a part of a rank's output.
struct Expected {
  std::size_t begin = 0;  ///< elements of the output
  std::size_t count = 0;
  int rank = all_ranks;     ///< the contributing rank, or all_ranks: the reduction over all
  std::uint64_t first = 0;  ///< index of its first element within that contribution

  static constexpr int all_ranks = -1;
};

/// Expected output of `rank` after `call`, where every rank's input begins with element `first` of its contribution.
/// Empty for a rank without output.
[[nodiscard]] std::vector<Expected> expected_of(const Call& call, int rank, int size, std::uint64_t first);

/// Fills the memory of a call before it and compares every element after it: the output, and the memory that the call
/// must not change. For calls of one collective, type and operation. Blocks only as long as Memory does; not
/// thread-safe.
class Checker {
 public:
  /// Bytes that the caller must reserve behind each output. They are checked for overruns.
  static constexpr std::size_t guard_bytes = 64;

  /// `memory` must outlive the checker.
  Checker(Memory& memory, int rank, int size, Collective collective, DataType type, ReduceOp op);

  /// Writes elements first, first + 1, … of this rank's contribution to the input, and poison to the guard bytes and to
  /// an output that is separate from the input.
  [[nodiscard]] Result<void> prepare(const Call& call, std::uint64_t first);

  /// The number of wrong elements of the output, changed elements of unused memory (the output of a rank other than the
  /// root, the input out of place), and changed guard bytes. `first` is that of prepare(), equal on all ranks.
  [[nodiscard]] Result<std::uint64_t> count_wrong(const Call& call, std::uint64_t first);

  /// Changes the middle element of this rank's input so that results become wrong.
  [[nodiscard]] Result<void> corrupt(const Call& call);

 private:
  [[nodiscard]] std::span<std::byte> input(const Call& call) const;
  [[nodiscard]] std::span<std::byte> output(const Call& call) const;
  [[nodiscard]] std::span<std::byte> guard(const Call& call) const;
  /// Whether input and output do not share memory.
  [[nodiscard]] bool is_out_of_place(const Call& call) const;
  [[nodiscard]] const Sequence& sequence_of(int rank);

  Memory& memory_;
  int rank_;
  int size_;
  std::size_t element_;
  ExactPattern pattern_;
  Sequence poison_;
  bool corrupted_ = false;          ///< the input is no longer as prepare() wrote it
  std::map<int, Sequence> others_;  ///< contributions of other ranks, made on first use
};

}  // namespace ddrun::collectives
