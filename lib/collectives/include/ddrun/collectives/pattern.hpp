#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddrun/collectives/collective.hpp"

namespace ddrun::collectives {

/// An infinite sequence of elements: one period repeated, each time rotated by period_shift(), so that data that is off
/// by a whole period differs too. Element p is period[(p % n + p / n % n * period_shift()) % n], where n is the
/// period's length. Immutable after construction.
class Sequence {
 public:
  Sequence() = default;
  /// `period` holds whole elements; their number must be a prime other than period_shift().
  Sequence(DataType type, std::vector<std::byte> period);

  [[nodiscard]] DataType type() const { return type_; }
  [[nodiscard]] std::span<const std::byte> period() const { return period_; }
  /// Elements of a period.
  [[nodiscard]] std::size_t length() const { return length_; }
  [[nodiscard]] static constexpr std::size_t period_shift() { return 4099; }

  /// Elements first, first + 1, …; `data` are whole elements.
  void fill(std::span<std::byte> data, std::uint64_t first) const;
  /// The number of elements that differ from those.
  [[nodiscard]] std::size_t count_wrong(std::span<const std::byte> data, std::uint64_t first) const;

 private:
  DataType type_ = DataType::uint8;
  std::size_t length_ = 0;
  std::vector<std::byte> period_;
};

/// Test data whose reduction over all ranks is known exactly, so that small errors are detected.
///
/// Contributions are pseudo-random in rank and position and need no rounding in any order of reduction. sum and avg use
/// integers whose sum the type holds exactly (integer types: any value, as they wrap around); prod uses signed powers
/// of two within range (integer types: odd numbers, so that each factor affects the product); max and min use integers
/// of which one rank, in turn, has the extreme one. An average is rounded once, by its division.
///
/// Neighbouring results differ as far as the type has enough values: data for position p is not valid for p + 1. Adding
/// the iteration number to `first` therefore distinguishes its results from those of earlier iterations.
///
/// A missing or duplicated contribution (duplicates not for max and min), or one of another rank or position, changes
/// the result. For sum and prod this holds at every element as long as every rank can contribute there (up to 2048
/// ranks for half, 256 for bfloat16; 14 ranks for a product of half, 126 of float and bfloat16), for max and min where
/// that rank has the extreme value. The remainder of an integer average is not checked.
class ExactPattern {
 public:
  /// 1 to 1,000,000 ranks. Construction computes up to 8,191 elements per rank.
  ExactPattern(int rank, int size, DataType type = DataType::float32, ReduceOp op = ReduceOp::sum);

  /// For collectives that only move data: words with all bits random. The words of any two ranks at a position differ
  /// (as far as the type has enough values), and so do neighbours. reduction() is empty.
  [[nodiscard]] static ExactPattern for_moved_data(int rank, int size, DataType type);

  /// The contribution of `rank`. Computed at each call.
  [[nodiscard]] Sequence contribution_of(int rank) const;
  [[nodiscard]] const Sequence& mine() const { return mine_; }
  [[nodiscard]] const Sequence& reduction() const { return reduction_; }

  // The same for host memory; elements first, first + 1, ….
  void fill(std::span<std::byte> data, std::uint64_t first = 0) const { mine_.fill(data, first); }
  void fill(std::span<float> data, std::uint64_t first = 0) const { fill(std::as_writable_bytes(data), first); }
  [[nodiscard]] std::size_t count_wrong(std::span<const std::byte> result, std::uint64_t first = 0) const {
    return reduction_.count_wrong(result, first);
  }
  [[nodiscard]] std::size_t count_wrong(std::span<const float> result, std::uint64_t first = 0) const {
    return count_wrong(std::as_bytes(result), first);
  }

  /// Changes element `index` of `data` so that the result becomes wrong.
  void corrupt(std::span<std::byte> data, std::size_t index) const;

 private:
  ExactPattern(int size, DataType type);

  DataType type_;
  ReduceOp op_;
  int size_;
  bool moves_only_ = false;
  std::vector<std::uint8_t> attempts_;  ///< by position in the period: the chosen attempt
  Sequence mine_;
  Sequence reduction_;
};

/// A pseudo-random 64-bit number, equal for equal arguments. A different `attempt` gives another number.
[[nodiscard]] std::uint64_t random_word(std::uint64_t rank, std::uint64_t position, std::uint64_t attempt);

}  // namespace ddrun::collectives
