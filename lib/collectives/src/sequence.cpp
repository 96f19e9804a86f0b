#include "ddrun/collectives/sequence.hpp"

#include <algorithm>
#include <cstring>

namespace ddrun::collectives {

namespace {

/// Calls `part(offset in data, offset in the table, length)`, in elements, for each piece that is one in both.
template <class Part>
void for_each_piece(std::uint64_t first, std::size_t count, std::size_t period, Part part) {
  for (std::size_t done = 0; done < count;) {
    const std::uint64_t position = first + done;
    const std::size_t in_period = position % period;
    const std::size_t from = (in_period + position / period % period * Sequence::turn()) % period;
    const std::size_t length = std::min({count - done, period - in_period, period - from});
    part(done, from, length);
    done += length;
  }
}

template <class Word>
std::size_t count_different(const std::byte* a, const std::byte* b, std::size_t count) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Word x;
    Word y;
    std::memcpy(&x, a + i * sizeof(Word), sizeof(Word));
    std::memcpy(&y, b + i * sizeof(Word), sizeof(Word));
    different += x != y ? 1U : 0U;
  }
  return different;
}

}  // namespace

Sequence::Sequence(DataType type, std::vector<std::byte> period)
    : type_(type), length_(period.size() / size_of(type)), period_(std::move(period)) {}

void Sequence::fill(std::span<std::byte> data, std::uint64_t first) const {
  const std::size_t element = size_of(type_);
  for_each_piece(first, data.size() / element, length_, [&](std::size_t at, std::size_t from, std::size_t length) {
    std::memcpy(data.data() + at * element, period_.data() + from * element, length * element);
  });
}

std::size_t Sequence::count_wrong(std::span<const std::byte> data, std::uint64_t first) const {
  const std::size_t element = size_of(type_);
  std::size_t wrong = 0;
  for_each_piece(first, data.size() / element, length_, [&](std::size_t at, std::size_t from, std::size_t length) {
    const std::byte* const a = data.data() + at * element;
    const std::byte* const b = period_.data() + from * element;
    if (std::memcmp(a, b, length * element) == 0) return;
    switch (element) {
      case 1: wrong += count_different<std::uint8_t>(a, b, length); break;
      case 2: wrong += count_different<std::uint16_t>(a, b, length); break;
      case 4: wrong += count_different<std::uint32_t>(a, b, length); break;
      default: wrong += count_different<std::uint64_t>(a, b, length);
    }
  });
  return wrong;
}

}  // namespace ddrun::collectives
