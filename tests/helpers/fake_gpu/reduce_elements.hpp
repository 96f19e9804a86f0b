#pragma once

// What the fake NCCL reduces with. Floating types are computed as double and rounded once, to nearest, ties to even;
// integers wrap around.

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ddrun::test::fake {

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

/// A floating type of 16 bits: IEEE's half has 10 bits of mantissa, bfloat16 has 7.
template <int Mantissa>
struct Small {
  using Stored = std::uint16_t;
  static constexpr int bias = (1 << (14 - Mantissa)) - 1;
  static constexpr std::uint32_t infinity_bits = ((1U << (15 - Mantissa)) - 1U) << Mantissa;

  static double load(Stored stored) {
    const std::uint64_t sign = static_cast<std::uint64_t>(stored >> 15U) << 63U;
    const std::uint64_t mantissa = stored & ((1U << Mantissa) - 1U);
    const std::uint64_t exponent = (stored & 0x7fffU) >> Mantissa;
    if (exponent == infinity_bits >> Mantissa) {
      return bits_as<double>(sign | std::uint64_t{0x7ff} << 52U | mantissa << (52 - Mantissa));
    }
    if (exponent == 0) {
      const auto least = bits_as<double>(static_cast<std::uint64_t>(1023 + 1 - bias - Mantissa) << 52U);
      const double magnitude = static_cast<double>(mantissa) * least;
      return sign != 0 ? -magnitude : magnitude;
    }
    return bits_as<double>(sign | (exponent + 1023 - bias) << 52U | mantissa << (52 - Mantissa));
  }

  static Stored store(double number) {
    const auto bits = bits_as<std::uint64_t>(number);
    const auto sign = static_cast<std::uint32_t>(bits >> 63U) << 15U;
    const int exponent = static_cast<int>(bits >> 52U & 0x7ffU) - 1023;
    const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52U) - 1);
    if (exponent == 1024) {
      return static_cast<Stored>(sign | infinity_bits | (fraction != 0 ? 1U << (Mantissa - 1) : 0U));
    }
    const int lowest = 1 - bias;
    int cut = 52 - Mantissa;
    if (exponent < lowest) cut += lowest - exponent;
    if (cut > 53) return static_cast<Stored>(sign);
    const std::uint64_t whole = std::uint64_t{1} << 52U | fraction;
    const std::uint64_t rest = whole & ((std::uint64_t{1} << cut) - 1);
    const std::uint64_t half = std::uint64_t{1} << (cut - 1);
    std::uint64_t kept = whole >> cut;
    if (rest > half || (rest == half && (kept & 1U) != 0)) ++kept;
    // What is carried out of the mantissa belongs to the exponent.
    std::uint64_t stored = kept;
    if (exponent >= lowest) stored += static_cast<std::uint64_t>(exponent - lowest) << Mantissa;
    if (stored > infinity_bits) stored = infinity_bits;
    return static_cast<Stored>(sign | stored);
  }
};

template <class Number>
struct Wide {
  using Stored = Number;
  static double load(Stored stored) { return static_cast<double>(stored); }
  static Stored store(double number) { return static_cast<Number>(number); }
};

/// Numbers of ReduceOp.
enum Op : std::uint32_t { op_sum, op_prod, op_max, op_min, op_avg };

template <class Format>
inline void reduce_floating(const void* const* in, std::uint32_t inputs, void* out, std::uint64_t count,
                            std::uint32_t op) {
  using Stored = typename Format::Stored;
  for (std::uint64_t i = 0; i < count; ++i) {
    double result = Format::load(static_cast<const Stored*>(in[0])[i]);
    for (std::uint32_t k = 1; k < inputs; ++k) {
      const double next = Format::load(static_cast<const Stored*>(in[k])[i]);
      if (op == op_sum || op == op_avg) result += next;
      else if (op == op_prod) result *= next;
      else if (next != next || (op == op_max ? next > result : next < result)) result = next;
    }
    if (op == op_avg) result /= static_cast<double>(inputs);
    static_cast<Stored*>(out)[i] = Format::store(result);
  }
}

template <class Integer>
inline void reduce_integers(const void* const* in, std::uint32_t inputs, void* out, std::uint64_t count,
                            std::uint32_t op) {
  for (std::uint64_t i = 0; i < count; ++i) {
    Integer result = static_cast<const Integer*>(in[0])[i];
    for (std::uint32_t k = 1; k < inputs; ++k) {
      const Integer next = static_cast<const Integer*>(in[k])[i];
      const auto a = static_cast<std::uint64_t>(result);
      const auto b = static_cast<std::uint64_t>(next);
      if (op == op_sum || op == op_avg) result = static_cast<Integer>(a + b);
      else if (op == op_prod) result = static_cast<Integer>(a * b);
      else if (op == op_max ? next > result : next < result) result = next;
    }
    if (op == op_avg) {
      // In a type that holds both the number and its divisor.
      using Wider = std::conditional_t<std::is_signed<Integer>::value, std::int64_t, std::uint64_t>;
      result = static_cast<Integer>(static_cast<Wider>(result) / static_cast<Wider>(inputs));
    }
    static_cast<Integer*>(out)[i] = result;
  }
}

/// out[i] = in[0][i] op in[1][i] op …; `type` is a DataType's number.
inline void reduce(std::uint32_t type, std::uint32_t op, const void* const* in, std::uint32_t inputs, void* out,
                   std::uint64_t count) {
  switch (type) {
    case 0: return reduce_integers<std::int8_t>(in, inputs, out, count, op);
    case 1: return reduce_integers<std::uint8_t>(in, inputs, out, count, op);
    case 2: return reduce_integers<std::int32_t>(in, inputs, out, count, op);
    case 3: return reduce_integers<std::uint32_t>(in, inputs, out, count, op);
    case 4: return reduce_integers<std::int64_t>(in, inputs, out, count, op);
    case 5: return reduce_integers<std::uint64_t>(in, inputs, out, count, op);
    case 6: return reduce_floating<Small<10>>(in, inputs, out, count, op);
    case 7: return reduce_floating<Wide<float>>(in, inputs, out, count, op);
    case 8: return reduce_floating<Wide<double>>(in, inputs, out, count, op);
    case 9: return reduce_floating<Small<7>>(in, inputs, out, count, op);
    default: return;
  }
}

}  // namespace ddrun::test::fake
