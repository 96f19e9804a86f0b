#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ddrun::collectives {

/// Every bit of x matters to every bit of the result (splitmix64's finaliser, public domain, by Sebastiano Vigna).
[[nodiscard]] std::uint64_t mix(std::uint64_t x);

/// A number that looks random in all its bits, the same for the same arguments. `attempt`: to try again.
[[nodiscard]] std::uint64_t random_word(std::uint64_t rank, std::uint64_t position, std::uint64_t attempt);

/// What `rank` has at the positions of a period of data that is only moved, words of `word_bytes` (1, 2, 4 or 8), one
/// after the other. Random in all bits. No two ranks have the same at a position as long as there are as many different
/// words as ranks, and neighbours differ, also where Sequence begins its period again.
[[nodiscard]] std::vector<std::byte> random_period(int rank, std::size_t length, std::size_t word_bytes);

}  // namespace ddrun::collectives
