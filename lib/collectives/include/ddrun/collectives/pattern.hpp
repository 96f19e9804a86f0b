#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ddrun/collectives/collective.hpp"

namespace ddrun::collectives {

/// Elements without end, made of one period that each time begins at another place, so that a whole period apart is
/// another place too. Element p is period[(p % n + p / n % n * turn()) % n], n being the period's length.
class Sequence {
 public:
  Sequence() = default;
  /// `period` has whole elements, a prime number of them other than turn().
  Sequence(DataType type, std::vector<std::byte> period);

  [[nodiscard]] DataType type() const { return type_; }
  [[nodiscard]] std::span<const std::byte> period() const { return period_; }
  /// Elements of a period.
  [[nodiscard]] std::size_t length() const { return length_; }
  [[nodiscard]] static constexpr std::size_t period_shift() { return 4099; }

  /// Elements first, first + 1, …; `data` are whole elements.
  void fill(std::span<std::byte> data, std::uint64_t first) const;
  /// How many elements are not those.
  [[nodiscard]] std::size_t count_wrong(std::span<const std::byte> data, std::uint64_t first) const;

 private:
  DataType type_ = DataType::uint8;
  std::size_t length_ = 0;
  std::vector<std::byte> period_;
};

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

  /// For data that is only moved: words that are random in all bits, whatever they would mean as numbers. No two ranks
  /// have the same at a position (as far as the type has as many values), and neighbours differ. There is no
  /// reduction().
  [[nodiscard]] static ExactPattern for_moved_data(int rank, int size, DataType type);

  /// What `rank` contributes. Made anew at each call but for this rank.
  [[nodiscard]] Sequence contribution_of(int rank) const;
  /// What this rank contributes.
  [[nodiscard]] const Sequence& mine() const { return mine_; }
  /// The reduction over all ranks.
  [[nodiscard]] const Sequence& reduction() const { return reduction_; }

  // The same on the program's own memory, elements first, first + 1, ….
  void fill(std::span<std::byte> data, std::uint64_t first = 0) const { mine_.fill(data, first); }
  void fill(std::span<float> data, std::uint64_t first = 0) const { fill(std::as_writable_bytes(data), first); }
  [[nodiscard]] std::size_t count_wrong(std::span<const std::byte> result, std::uint64_t first = 0) const {
    return reduction_.count_wrong(result, first);
  }
  [[nodiscard]] std::size_t count_wrong(std::span<const float> result, std::uint64_t first = 0) const {
    return count_wrong(std::as_bytes(result), first);
  }

  /// Makes this rank's contribution to element `index` of `data` one that makes the result wrong.
  void corrupt(std::span<std::byte> data, std::size_t index) const;

 private:
  ExactPattern(int size, DataType type);

  DataType type_;
  ReduceOp op_;
  int size_;
  bool moves_only_ = false;
  std::vector<std::uint8_t> attempts_;  ///< at each place of a period, which of the contributions it is
  Sequence mine_;
  Sequence reduction_;
};

/// A number that looks random in all its bits, the same for the same arguments. `attempt`: to try again.
[[nodiscard]] std::uint64_t random_word(std::uint64_t rank, std::uint64_t position, std::uint64_t attempt);

}  // namespace ddrun::collectives
