#include "ddrun/collectives/pattern.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

namespace {

/// Calls `part(offset in data, offset in the table, length)`, in elements, for each piece contiguous in both.
template <class Part>
void for_each_piece(std::uint64_t first, std::size_t count, std::size_t period, Part part) {
  for (std::size_t done = 0; done < count;) {
    const std::uint64_t position = first + done;
    const std::size_t in_period = position % period;
    const std::size_t from = (in_period + position / period % period * Sequence::period_shift()) % period;
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

namespace {

/// splitmix64's finaliser (public domain, by Sebastiano Vigna): every input bit affects every output bit.
std::uint64_t mix(std::uint64_t x) {
  x ^= x >> 30U;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27U;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

}  // namespace

std::uint64_t random_word(std::uint64_t rank, std::uint64_t position, std::uint64_t attempt) {
  return mix(mix((rank << 32U) + position + 0x9e3779b97f4a7c15ULL) + attempt);
}

namespace {

/// One period of data that is only moved, for `rank`: consecutive words of `word_bytes` (1, 2, 4 or 8), all bits
/// random. The words of any two ranks at a position differ as long as there are as many words as ranks; neighbours
/// differ too, also where Sequence starts its next period.
std::vector<std::byte> random_period(int rank, std::size_t length, std::size_t word_bytes) {
  // A word common to all ranks plus a rank-specific distance, whose lowest bits are the rank times an odd number.
  const std::uint64_t distance = static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15ULL;
  const std::uint64_t mask = ~std::uint64_t{0} >> (64 - 8 * word_bytes);
  std::vector<std::uint64_t> common(length);
  const std::size_t shift = Sequence::period_shift() + 1;  // from the last element of a period to the first of the next
  std::vector<std::byte> period(length * word_bytes);
  for (std::size_t i = 0; i < length; ++i) {
    const std::size_t before = i == 0 ? length - 1 : i - 1;
    const std::size_t neighbours[] = {before, (i + 1) % length, (i + shift) % length,
                                      (i + length - shift % length) % length};
    const auto is_taken = [&](std::uint64_t word) {
      for (const std::size_t other : neighbours) {
        if (other < i && common[other] == word) return true;
      }
      return false;
    };
    for (std::uint64_t attempt = 0;; ++attempt) {
      common[i] = random_word(0, i, attempt) & mask;
      if (!is_taken(common[i])) break;
    }
    const std::uint64_t word = common[i] + distance;
    std::memcpy(period.data() + i * word_bytes, &word, word_bytes);
  }
  return period;
}

// Primes, so that data displaced by whole blocks, pages or slices differs. The short period limits the construction
// time for large groups.
constexpr std::size_t long_period = 8191;
constexpr std::size_t short_period = 509;
constexpr int many_ranks = 2048;
/// Limit of retries for a position whose result equals its neighbour's.
constexpr std::uint8_t max_attempts = 32;

/// Values that a floating type represents without rounding.
struct Range {
  std::uint64_t whole;  ///< every integer up to this
  int exponent;         ///< 2^-exponent to 2^exponent
};

Range range_of(DataType type) {
  switch (type) {
    case DataType::float16: return {std::uint64_t{1} << 11U, 14};
    case DataType::bfloat16: return {std::uint64_t{1} << 8U, 126};
    case DataType::float32: return {std::uint64_t{1} << 24U, 126};
    default: return {std::uint64_t{1} << 53U, 1022};
  }
}

/// The contributions of all ranks to one position, as numbers that are exact in double or as bits of an integer.
class Contributions {
 public:
  Contributions(DataType type, ReduceOp op, int size)
      : type_(type), op_(op), size_(static_cast<std::uint64_t>(size)), range_(range_of(type)) {}

  [[nodiscard]] std::uint64_t bits(std::uint64_t rank, std::uint64_t position, std::uint64_t attempt) const {
    const std::uint64_t number = random_word(rank, position, attempt);
    if (kind_of(type_) != NumberKind::floating) return integer(number, rank, position);
    return encode(floating(number, rank, position));
  }

  [[nodiscard]] std::uint64_t encode(double number) const {
    if (type_ == DataType::float64) return std::bit_cast<std::uint64_t>(number);
    const auto single = static_cast<float>(number);
    if (type_ == DataType::float32) return std::bit_cast<std::uint32_t>(single);
    std::uint16_t small = 0;
    kernels(type_, ReduceOp::sum, SimdPath::baseline).finish(&small, &single, 1, 1);
    return small;
  }

  [[nodiscard]] bool has_extreme(std::uint64_t rank, std::uint64_t position) const { return position % size_ == rank; }

 private:
  /// With more ranks than the range allows, only one rank in `every` contributes at a position.
  [[nodiscard]] bool contributes(std::uint64_t rank, std::uint64_t position, std::uint64_t most) const {
    const std::uint64_t every = (size_ + most - 1) / most;
    return (rank + position) % every == 0;
  }

  [[nodiscard]] double floating(std::uint64_t number, std::uint64_t rank, std::uint64_t position) const {
    const bool negative = (number >> 63U) != 0;
    switch (op_) {
      case ReduceOp::prod: {
        const bool active = contributes(rank, position, static_cast<std::uint64_t>(range_.exponent));
        const double factor = !active ? 1 : (number & 1U) != 0 ? 2 : 0.5;
        return negative ? -factor : factor;
      }
      case ReduceOp::max:
      case ReduceOp::min: {
        const auto magnitude = static_cast<double>(1 + number % range_.whole);
        return has_extreme(rank, position) == (op_ == ReduceOp::max) ? magnitude : -magnitude;
      }
      default: {
        // At least 1, so that a missing contribution always changes the sum.
        if (size_ > range_.whole && !contributes(rank, position, range_.whole)) return 0;
        return static_cast<double>(1 + number % std::max<std::uint64_t>(range_.whole / size_, 1));
      }
    }
  }

  [[nodiscard]] std::uint64_t integer(std::uint64_t number, std::uint64_t rank, std::uint64_t position) const {
    if (op_ == ReduceOp::prod) return number | 3U;  // odd, and not 1
    if (op_ != ReduceOp::max && op_ != ReduceOp::min) return number | 1U;
    // The upper or lower half of the type's values, by the sign bit or, for unsigned types, the top bit.
    const std::uint64_t top = std::uint64_t{1} << (8 * size_of(type_) - 1);
    // Excludes the greatest and smallest values, so that corrupt() can use one beyond.
    number = (number & ~std::uint64_t{3}) | ((number & 1U) != 0 ? 1U : 2U);
    bool high = has_extreme(rank, position) == (op_ == ReduceOp::max);
    if (kind_of(type_) == NumberKind::signed_integer) high = !high;
    return high ? number | top : number & ~top;
  }

  DataType type_;
  ReduceOp op_;
  std::uint64_t size_;
  Range range_;
};

}  // namespace

ExactPattern::ExactPattern(int rank, int size, DataType type, ReduceOp op) : type_(type), op_(op), size_(size) {
  const std::size_t element = size_of(type);
  const std::size_t length = size > many_ranks ? short_period : long_period;
  const Contributions contributions(type, op, size);
  const Kernels& loops = kernels(type, op, SimdPath::baseline);
  const auto contribute = [&](int r, std::size_t i, std::byte* to) {
    const std::uint64_t bits = contributions.bits(static_cast<std::uint64_t>(r), i, attempts_[i]);
    std::memcpy(to, &bits, element);
  };
  attempts_.resize(length);
  std::vector<std::byte> mine;
  std::vector<std::byte> result(length * element);
  // First all positions, rank by rank.
  std::vector<std::byte> row(length * element);
  std::vector<std::byte> numbers(length * size_of(accumulator_type(type)));
  for (int r = 0; r < size; ++r) {
    for (std::size_t i = 0; i < length; ++i) contribute(r, i, row.data() + i * element);
    (r == 0 ? loops.load : loops.accumulate)(numbers.data(), row.data(), length);
    if (r == rank) mine = row;
  }
  loops.finish(result.data(), numbers.data(), length, size);
  // Then retry the positions whose result equals a neighbour's.
  const auto like_neighbour = [&](std::size_t i) {
    const std::byte* const one = result.data() + i * element;
    return (i > 0 && std::memcmp(one, one - element, element) == 0) ||
           (i + 1 == length && std::memcmp(one, result.data(), element) == 0);
  };
  for (std::size_t i = 0; i < length; ++i) {
    while (attempts_[i] + 1 < max_attempts && like_neighbour(i)) {
      ++attempts_[i];
      for (int r = 0; r < size; ++r) {
        contribute(r, i, row.data());
        (r == 0 ? loops.load : loops.accumulate)(numbers.data(), row.data(), 1);
        if (r == rank) std::memcpy(mine.data() + i * element, row.data(), element);
      }
      loops.finish(result.data() + i * element, numbers.data(), 1, size);
    }
  }
  mine_ = Sequence(type, std::move(mine));
  reduction_ = Sequence(type, std::move(result));
}

ExactPattern::ExactPattern(int size, DataType type) : type_(type), op_(ReduceOp::sum), size_(size), moves_only_(true) {}

ExactPattern ExactPattern::for_moved_data(int rank, int size, DataType type) {
  ExactPattern pattern(size, type);
  pattern.mine_ = pattern.contribution_of(rank);
  return pattern;
}

Sequence ExactPattern::contribution_of(int rank) const {
  const std::size_t element = size_of(type_);
  if (moves_only_) return {type_, random_period(rank, long_period, element)};
  const Contributions contributions(type_, op_, size_);
  std::vector<std::byte> period(mine_.period().size());
  for (std::size_t i = 0; i < attempts_.size(); ++i) {
    const std::uint64_t bits = contributions.bits(static_cast<std::uint64_t>(rank), i, attempts_[i]);
    std::memcpy(period.data() + i * element, &bits, element);
  }
  return {type_, std::move(period)};
}

void ExactPattern::corrupt(std::span<std::byte> data, std::size_t index) const {
  const std::size_t size = size_of(type_);
  std::byte* const element = data.data() + index * size;
  std::uint64_t bits = 0;
  std::memcpy(&bits, element, size);
  const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
  if (moves_only_) {
    bits ^= sign;
  } else if (kind_of(type_) == NumberKind::floating) {
    // Flipping the sign changes sums and products; infinity exceeds every other number.
    if (op_ == ReduceOp::max || op_ == ReduceOp::min) {
      const double infinity = std::numeric_limits<double>::infinity();
      bits = Contributions(type_, op_, size_).encode(op_ == ReduceOp::max ? infinity : -infinity);
    } else {
      bits ^= sign;
    }
  } else if (op_ == ReduceOp::max || op_ == ReduceOp::min) {
    // The greatest or smallest value, which no rank contributes.
    const bool is_signed = kind_of(type_) == NumberKind::signed_integer;
    const std::uint64_t all = sign | (sign - 1);
    const std::uint64_t greatest = is_signed ? sign - 1 : all;
    const std::uint64_t smallest = is_signed ? sign : 0;
    bits = op_ == ReduceOp::max ? greatest : smallest;
  } else if (op_ == ReduceOp::avg) {
    bits += static_cast<std::uint64_t>(size_);  // the average grows by one
  } else {
    bits += 2;  // for prod: an odd factor becomes another odd one
  }
  std::memcpy(element, &bits, size);
}

}  // namespace ddrun::collectives
