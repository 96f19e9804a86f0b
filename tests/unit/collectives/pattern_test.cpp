#include "ddrun/collectives/pattern.hpp"

#include <algorithm>

#include "ddrun/test/catch.hpp"

using namespace ddrun::collectives;

namespace {

constexpr std::size_t kElements = 20000;

std::vector<float> contribution(int rank, int size) {
  std::vector<float> data(kElements);
  ExactPattern(rank, size).fill(data);
  return data;
}

/// The sum of the named ranks' contributions.
std::vector<float> sum_of(const std::vector<int>& ranks, int size) {
  std::vector<float> sum(kElements);
  for (const int rank : ranks) {
    const auto one = contribution(rank, size);
    std::transform(sum.begin(), sum.end(), one.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

}  // namespace

TEST_CASE("the right sum has no wrong element") {
  const ExactPattern pattern(1, 4);
  CHECK(pattern.count_wrong(sum_of({0, 1, 2, 3}, 4)) == 0);
  CHECK(pattern.count_wrong(sum_of({3, 1, 0, 2}, 4)) == 0);
}

TEST_CASE("sums stay exact for many ranks") {
  const int size = 100;
  std::vector<int> ranks(size);
  for (int rank = 0; rank < size; ++rank) ranks[static_cast<std::size_t>(rank)] = rank;
  const auto sum = sum_of(ranks, size);
  CHECK(ExactPattern(7, size).count_wrong(sum) == 0);
  CHECK(*std::max_element(sum.begin(), sum.end()) <= 16777216.0F);
}

TEST_CASE("a missing or doubled contribution makes every element wrong") {
  const ExactPattern pattern(0, 4);
  CHECK(pattern.count_wrong(sum_of({0, 1, 2}, 4)) == kElements);
  CHECK(pattern.count_wrong(sum_of({0, 1, 2, 3, 3}, 4)) == kElements);
}

TEST_CASE("another rank's contribution in place of one makes nearly every element wrong") {
  const ExactPattern pattern(0, 4);
  CHECK(pattern.count_wrong(sum_of({0, 1, 2, 2}, 4)) > kElements * 99 / 100);
  CHECK(pattern.count_wrong(sum_of({0, 0, 3, 3}, 4)) > kElements * 99 / 100);
}

TEST_CASE("data from another position is wrong") {
  const ExactPattern pattern(0, 2);
  const auto sum = sum_of({0, 1}, 2);
  for (const std::size_t shift : {std::size_t{1}, std::size_t{16}, std::size_t{4096}, std::size_t{8191}}) {
    const std::span<const float> shifted(sum.data() + shift, kElements - shift);
    CHECK(pattern.count_wrong(shifted) > shifted.size() * 99 / 100);
    CHECK(pattern.count_wrong(shifted, shift) == 0);
  }
}

TEST_CASE("a single wrong element is counted once") {
  const ExactPattern pattern(0, 2);
  auto sum = sum_of({0, 1}, 2);
  sum[12345] += 1;
  CHECK(pattern.count_wrong(sum) == 1);
}

TEST_CASE("data for moves differs between ranks and between neighbours") {
  for (const DataType type : all_types) {
    CAPTURE(name_of(type));
    constexpr int kSize = 256;  // the number of values of the smallest type
    constexpr std::size_t kElements = 5000;
    const std::size_t element = size_of(type);
    std::vector<std::vector<std::byte>> ranks;
    for (int rank = 0; rank < kSize; ++rank) {
      ranks.emplace_back(kElements * element);
      if (rank % 51 != 0) continue;
      const ExactPattern pattern = ExactPattern::for_moved_data(rank, kSize, type);
      pattern.fill(ranks.back(), 3);
      const Sequence& mine = pattern.mine();
      CHECK(mine.count_wrong(ranks.back(), 3) == 0);
      CHECK(mine.count_wrong(ranks.back(), 2) == kElements);
      CHECK(mine.count_wrong(ranks.back(), 4) == kElements);
      CHECK(mine.count_wrong(ranks.back(), 3 + mine.length()) > kElements * 98 / 100);
      for (int other = 0; other < kSize; other += 51) {
        if (other == rank) continue;
        CHECK(pattern.contribution_of(other).count_wrong(ranks.back(), 3) == kElements);
      }
      // Every bit is 0 and 1 equally often, so a stuck bit would show.
      std::vector<std::size_t> ones(8 * element);
      for (std::size_t i = 0; i < ranks.back().size(); ++i) {
        for (std::size_t bit = 0; bit < 8; ++bit) {
          ones[8 * (i % element) + bit] += std::to_integer<unsigned>(ranks.back()[i]) >> bit & 1U;
        }
      }
      CHECK(*std::min_element(ones.begin(), ones.end()) > kElements * 45 / 100);
      CHECK(*std::max_element(ones.begin(), ones.end()) < kElements * 55 / 100);
    }
  }
}
