#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddrun/collectives/data_type.hpp"
#include "ddrun/collectives/reduce_op.hpp"

namespace ddrun::collectives {

/// Test data whose reduction over all ranks is known exactly, so that "nearly right" cannot pass.
///
/// Contributions are pseudo-random in rank and position and chosen so that no rounding happens, in whatever order they
/// are reduced: for sum and avg whole numbers whose sum the type holds exactly (integers: any, as they wrap around);
/// for prod signed powers of two that stay in range (integers: odd numbers, whose product tells each of them); for max
/// and min whole numbers of which one rank, in turn, has the extreme one. An average is rounded once, by its division.
///
/// Neighbouring results differ, as far as the type has enough values: data for position p, p + 1, … is never right
/// for p + 1, p + 2, …. So the number of an iteration, added to `first`, tells its results from those before.
///
/// A missing contribution, or one that was counted twice (not for max and min), taken from another rank or another
/// place, changes the result: of sum and prod at every element, as long as every rank can contribute something there
/// (up to 2048 ranks for half, 256 for bfloat16; 14 ranks for a product of half, 126 of float and bfloat16), and of max
/// and min where that rank has the extreme value. An average of integers cannot show what its division cuts off.
class ExactPattern {
 public:
  /// `size` ranks, 1 to 1,000,000. Takes time and memory for up to 8,191 elements per rank, once.
  ExactPattern(int rank, int size, DataType type = DataType::float32, ReduceOp op = ReduceOp::sum);

  /// What this rank contributes to elements first, first + 1, …; `data` are whole elements.
  void fill(std::span<std::byte> data, std::uint64_t first = 0) const;
  void fill(std::span<float> data, std::uint64_t first = 0) const { fill(std::as_writable_bytes(data), first); }

  /// How many elements of `result` are not the reduction over all ranks.
  [[nodiscard]] std::size_t count_wrong(std::span<const std::byte> result, std::uint64_t first = 0) const;
  [[nodiscard]] std::size_t count_wrong(std::span<const float> result, std::uint64_t first = 0) const {
    return count_wrong(std::as_bytes(result), first);
  }

  /// Makes this rank's contribution to element `index` of `data` one that makes the result wrong.
  void spoil(std::span<std::byte> data, std::size_t index) const;

 private:
  DataType type_;
  ReduceOp op_;
  int size_;
  std::size_t element_;
  std::size_t period_;
  std::vector<std::byte> mine_;   ///< this rank's contributions to one period
  std::vector<std::byte> right_;  ///< their reduction over all ranks
};

}  // namespace ddrun::collectives
