#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "ddrun/collectives/collective.hpp"

namespace ddrun::test {

using collectives::DataType;
using collectives::ReduceOp;

/// Decodes a small floating type by definition; `fraction` and `exponent` are widths in bits.
inline double decode(std::uint16_t bits, int fraction, int exponent) {
  const int bias = (1 << (exponent - 1)) - 1;
  const int e = (bits >> fraction) & ((1 << exponent) - 1);
  const int f = bits & ((1 << fraction) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (e == (1 << exponent) - 1) {
    return f != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (e == 0) return sign * std::ldexp(f, 1 - bias - fraction);
  return sign * std::ldexp((1 << fraction) + f, e - bias - fraction);
}

/// Rounds to that type, to nearest even. Any NaN for NaN.
inline std::uint16_t encode(double number, int fraction, int exponent) {
  const int bias = (1 << (exponent - 1)) - 1;
  const std::uint16_t sign = std::signbit(number) ? 0x8000 : 0;
  const int infinity = ((1 << exponent) - 1) << fraction;
  if (std::isnan(number)) return static_cast<std::uint16_t>(infinity | (1 << (fraction - 1)));
  const double magnitude = std::fabs(number);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | infinity);
  // The distance of neighbouring numbers; nearbyint() rounds ties to even.
  const int place = std::max(std::ilogb(magnitude), 1 - bias) - fraction;
  const double steps = std::nearbyint(std::ldexp(magnitude, -place));
  // Bits of neighbouring numbers differ by one, also across powers of two and to infinity.
  const int first = place + fraction == 1 - bias ? 0 : (place + fraction + bias - 1) << fraction;
  const double bits = first + steps;
  return static_cast<std::uint16_t>(sign | static_cast<int>(std::min<double>(bits, infinity)));
}

template <class Number>
Number naive_step(ReduceOp op, Number a, Number b) {
  if constexpr (std::is_integral_v<Number>) {
    using Unsigned = std::make_unsigned_t<Number>;
    const auto x = static_cast<std::uint64_t>(static_cast<Unsigned>(a));
    const auto y = static_cast<std::uint64_t>(static_cast<Unsigned>(b));
    if (op == ReduceOp::sum || op == ReduceOp::avg) return static_cast<Number>(static_cast<Unsigned>(x + y));
    if (op == ReduceOp::prod) return static_cast<Number>(static_cast<Unsigned>(x * y));
  } else {
    if (op == ReduceOp::sum || op == ReduceOp::avg) return a + b;
    if (op == ReduceOp::prod) return a * b;
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  }
  if (op == ReduceOp::max) return b > a ? b : a;
  return b < a ? b : a;
}

template <class Number>
Number naive_last(ReduceOp op, Number number, int ranks) {
  if (op != ReduceOp::avg) return number;
  if constexpr (std::is_same_v<Number, std::uint64_t>) return number / static_cast<std::uint64_t>(ranks);
  else if constexpr (std::is_integral_v<Number>) return static_cast<Number>(std::int64_t{number} / ranks);
  else return number / static_cast<Number>(ranks);
}

/// Reduces one element; `in` points to it in each rank's array.
inline void naive_element(DataType type, ReduceOp op, const std::vector<const std::byte*>& in, std::byte* out,
                          int ranks) {
  const auto plain = [&]<class Number>(Number) {
    const auto get = [](const std::byte* from) {
      Number number;
      std::memcpy(&number, from, sizeof(number));
      return number;
    };
    Number number = get(in[0]);
    for (std::size_t k = 1; k < in.size(); ++k) number = naive_step(op, number, get(in[k]));
    number = naive_last(op, number, ranks);
    std::memcpy(out, &number, sizeof(number));
  };
  const auto small = [&](int fraction, int exponent) {
    const auto get = [&](const std::byte* from) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, from, sizeof(bits));
      return static_cast<float>(decode(bits, fraction, exponent));
    };
    float number = get(in[0]);
    for (std::size_t k = 1; k < in.size(); ++k) number = naive_step(op, number, get(in[k]));
    const std::uint16_t bits = encode(naive_last(op, number, ranks), fraction, exponent);
    std::memcpy(out, &bits, sizeof(bits));
  };
  switch (type) {
    case DataType::int8: return plain(std::int8_t{});
    case DataType::uint8: return plain(std::uint8_t{});
    case DataType::int32: return plain(std::int32_t{});
    case DataType::uint32: return plain(std::uint32_t{});
    case DataType::int64: return plain(std::int64_t{});
    case DataType::uint64: return plain(std::uint64_t{});
    case DataType::float32: return plain(float{});
    case DataType::float64: return plain(double{});
    case DataType::float16: return small(10, 5);
    case DataType::bfloat16: return small(7, 8);
  }
}

/// Whether an element is a floating number that is NaN.
inline bool is_nan(DataType type, const std::byte* element) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, element, collectives::size_of(type));
  switch (type) {
    case DataType::float16: return (bits & 0x7fff) > 0x7c00;
    case DataType::bfloat16: return (bits & 0x7fff) > 0x7f80;
    case DataType::float32: return (bits & 0x7fffffff) > 0x7f800000;
    case DataType::float64: return (bits & ~(std::uint64_t{1} << 63U)) > std::uint64_t{0x7ff} << 52U;
    default: return false;
  }
}

}  // namespace ddrun::test
