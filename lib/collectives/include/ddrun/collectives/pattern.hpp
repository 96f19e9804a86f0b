#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddrun::collectives {

/// Test data whose float sum over all ranks is exact, so that "nearly right" cannot pass.
///
/// Element i of rank r is a whole number: a pseudo-random value that depends on r and on i modulo a prime, plus
/// how often that prime fits into i. No sum exceeds 2^24, up to which float holds every whole number. A missing
/// contribution, one that was counted twice, one taken from another rank or from another place changes the sum.
class ExactPattern {
 public:
  /// `size` ranks, 1 to 1,000,000. Takes time and memory for about 10,000 elements per rank, once.
  ExactPattern(int rank, int size);

  /// What this rank contributes to elements first, first + 1, …
  void fill(std::span<float> data, std::size_t first = 0) const;

  /// How many elements of `result` are not the sum over all ranks.
  [[nodiscard]] std::size_t count_wrong(std::span<const float> result, std::size_t first = 0) const;

 private:
  std::vector<float> mine_;
  std::vector<float> sum_;
  std::uint64_t rounds_;  ///< the part that counts periods starts again after this many
  float size_;
};

}  // namespace ddrun::collectives
