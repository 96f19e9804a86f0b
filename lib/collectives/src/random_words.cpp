#include "random_words.hpp"

#include <cstring>

#include "ddrun/collectives/sequence.hpp"

namespace ddrun::collectives {

std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30U;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27U;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

std::uint64_t random_word(std::uint64_t rank, std::uint64_t position, std::uint64_t attempt) {
  return mix(mix((rank << 32U) + position + 0x9e3779b97f4a7c15ULL) + attempt);
}

std::vector<std::byte> random_period(int rank, std::size_t length, std::size_t word_bytes) {
  // What all ranks have in common, plus the rank's distance, whose lowest bits are the rank's times an odd number.
  const std::uint64_t distance = static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15ULL;
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - 8 * word_bytes);
  std::vector<std::uint64_t> common(length);
  const std::size_t turn = Sequence::turn() + 1;  // from the last of a period to the first of the next
  std::vector<std::byte> period(length * word_bytes);
  for (std::size_t i = 0; i < length; ++i) {
    const std::size_t before = i == 0 ? length - 1 : i - 1;
    const std::size_t neighbours[] = {before, (i + 1) % length, (i + turn) % length,
                                      (i + length - turn % length) % length};
    const auto taken = [&](std::uint64_t word) {
      for (const std::size_t other : neighbours) {
        if (other < i && common[other] == word) return true;
      }
      return false;
    };
    for (std::uint64_t attempt = 0;; ++attempt) {
      common[i] = random_word(0, i, attempt) & mask;
      if (!taken(common[i])) break;
    }
    const std::uint64_t word = common[i] + distance;
    std::memcpy(period.data() + i * word_bytes, &word, word_bytes);
  }
  return period;
}

}  // namespace ddrun::collectives
