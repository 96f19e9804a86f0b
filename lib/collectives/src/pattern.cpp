#include "ddrun/collectives/pattern.hpp"

#include <algorithm>

namespace ddrun::collectives {

namespace {

// A prime: data moved by any number of whole blocks, pages or slices meets other values.
constexpr std::size_t kPeriod = 8191;
constexpr std::uint64_t kExactInFloat = std::uint64_t{1} << 24;

std::uint64_t mix(std::uint64_t x) {  // splitmix64's finaliser: every bit of x matters to every bit of the result
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// At least 1, so that leaving a contribution out always shows.
float value(std::uint64_t rank, std::uint64_t position, std::uint64_t range) {
  return static_cast<float>(1 + mix((rank << 32) + position + 0x9e3779b97f4a7c15ULL) % range);
}

/// Calls `part(offset in data, offset in the period, length, number of the period)` for each piece of a period.
template <class Part>
void for_each_period(std::size_t first, std::size_t count, Part part) {
  for (std::size_t done = 0; done < count;) {
    const std::size_t in_period = (first + done) % kPeriod;
    const std::size_t length = std::min(count - done, kPeriod - in_period);
    part(done, in_period, length, (first + done) / kPeriod);
    done += length;
  }
}

}  // namespace

ExactPattern::ExactPattern(int rank, int size)
    : mine_(kPeriod), sum_(kPeriod), rounds_(1), size_(static_cast<float>(size)) {
  // Half of what each rank may contribute at most is for the pseudo-random part, half for the count of periods.
  const std::uint64_t half = std::max<std::uint64_t>(kExactInFloat / static_cast<std::uint64_t>(size) / 2, 1);
  rounds_ = half;
  for (int r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < kPeriod; ++i) {
      const float v = value(static_cast<std::uint64_t>(r), i, half);
      sum_[i] += v;
      if (r == rank) mine_[i] = v;
    }
  }
}

void ExactPattern::fill(std::span<float> data, std::size_t first) const {
  for_each_period(first, data.size(), [&](std::size_t at, std::size_t from, std::size_t length, std::size_t period) {
    const auto extra = static_cast<float>(period % rounds_);
    for (std::size_t i = 0; i < length; ++i) data[at + i] = mine_[from + i] + extra;
  });
}

std::size_t ExactPattern::count_wrong(std::span<const float> result, std::size_t first) const {
  std::size_t wrong = 0;
  for_each_period(first, result.size(), [&](std::size_t at, std::size_t from, std::size_t length, std::size_t period) {
    const float extra = static_cast<float>(period % rounds_) * size_;
    unsigned here = 0;
    for (std::size_t i = 0; i < length; ++i) here += result[at + i] != sum_[from + i] + extra ? 1U : 0U;
    wrong += here;
  });
  return wrong;
}

}  // namespace ddrun::collectives
