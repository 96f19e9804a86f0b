// Reduction loops, compiled once per SimdPath with different compiler options; each source defines DDRUN_KERNEL_TABLE.
// All code here must be local to the file: of inline functions the linker keeps one copy, which must not use
// instructions that other processors lack.

#include <stdint.h>
#include <string.h>

#include "reduce/tables.hpp"

#ifdef __SSE2__
#include <immintrin.h>
#endif

/// Declares the iterations of the next loop independent: an output equals an input of the same index or overlaps none,
/// which the compiler cannot know.
#ifdef __clang__
#define DDRUN_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define DDRUN_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace ddrun::collectives {

namespace {

/// Elements per block; a few blocks fit in the first-level cache.
constexpr size_t block_elements = 1024;
constexpr size_t cache_line_bytes = 64;

// Element types: storage and arithmetic type of each.

template <class Number>
struct Plain {
  using Stored = Number;
  using Computed = Number;
  static Number load(Stored stored) { return stored; }
  static Stored store(Number number) { return number; }
};

struct Half {
  using Stored = uint16_t;
  using Computed = float;

  static float load(uint16_t stored) {
    const uint32_t sign = static_cast<uint32_t>(stored & 0x8000U) << 16U;
    const uint32_t magnitude = static_cast<uint32_t>(stored & 0x7fffU) << 13U;
    // The exponents' biases differ by 112. Multiplication is right for subnormal numbers too.
    const uint32_t scaled = __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, magnitude) * 0x1p112F);
    const uint32_t special = magnitude | (magnitude > 0x0f800000U ? 0x7fc00000U : 0x7f800000U);
    return __builtin_bit_cast(float, sign | (magnitude >= 0x0f800000U ? special : scaled));
  }

  static uint16_t store(float number) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, number);
    const uint32_t magnitude = bits & 0x7fffffffU;
    const uint32_t odd = (magnitude >> 13U) & 1U;
    const uint32_t normal = (magnitude + 0xfffU + odd - (112U << 23U)) >> 13U;
    // For results that are subnormal in half, adding 0.5 rounds at the right bit.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5F;
    const uint32_t subnormal = __builtin_bit_cast(uint32_t, shifted) - 0x3f000000U;
    const uint32_t nan = 0x7e00U | ((magnitude >> 13U) & 0x3ffU);
    uint32_t result = magnitude < 0x38800000U ? subnormal : normal;
    result = magnitude >= 0x47800000U ? 0x7c00U : result;
    result = magnitude > 0x7f800000U ? nan : result;
    return static_cast<uint16_t>(result | ((bits >> 16U) & 0x8000U));
  }
};

#ifdef __F16C__
/// Eight half numbers at a time with F16C instructions, which round and keep NaNs as Half does.
struct EightHalves {
  typedef float Numbers __attribute__((vector_size(32)));
  static constexpr size_t lanes = 8;

  static Numbers load(const uint16_t* from) {
    return reinterpret_cast<Numbers>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static void store(uint16_t* to, Numbers numbers) {
    const __m128i stored = _mm256_cvtps_ph(reinterpret_cast<__m256>(numbers), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), stored);
  }
  static Numbers numbers_at(const float* from) { return reinterpret_cast<Numbers>(_mm256_loadu_ps(from)); }
  static void put(float* to, Numbers numbers) { _mm256_storeu_ps(to, reinterpret_cast<__m256>(numbers)); }
};
#endif

struct BFloat16 {
  using Stored = uint16_t;
  using Computed = float;

  static float load(uint16_t stored) { return __builtin_bit_cast(float, static_cast<uint32_t>(stored) << 16U); }

  static uint16_t store(float number) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, number);
    const uint32_t rounded = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
    const uint32_t nan = (bits >> 16U) | 0x40U;
    return static_cast<uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? nan : rounded);
  }
};

// Operations on two numbers, and the final step on the result.

struct KeepResult {
  template <class Number>
  static Number finalize(Number number, int /*ranks*/) {
    return number;
  }
  static constexpr bool finalizes = false;
};

struct Sum : KeepResult {
  template <class Number>
  static Number apply(Number a, Number b) {
    return static_cast<Number>(a + b);
  }
};

struct Product : KeepResult {
  template <class Number>
  static Number apply(Number a, Number b) {
    return static_cast<Number>(a * b);
  }
};

// Comparisons with NaN are false, so a NaN in either operand is kept.

struct Maximum : KeepResult {
  template <class Number>
  static Number apply(Number a, Number b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};

struct Minimum : KeepResult {
  template <class Number>
  static Number apply(Number a, Number b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};

/// Type in which integers are divided. For numbers below 2^32 a double quotient truncates correctly for divisors below
/// 2^20, and double division is vectorised.
template <class Number>
struct Quotient {
  using In = double;
};
template <>
struct Quotient<float> {
  using In = float;
};
template <>
struct Quotient<int64_t> {
  using In = int64_t;
};
template <>
struct Quotient<uint64_t> {
  using In = uint64_t;
};

struct Average {
  /// Signed addition wraps as unsigned; for floats the cast has no effect.
  template <class Number>
  static Number apply(Number a, Number b) {
    return static_cast<Number>(a + b);
  }
  static int32_t apply(int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
  static int64_t apply(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  template <class Number>
  static Number finalize(Number number, int ranks) {
    using In = typename Quotient<Number>::In;
    return static_cast<Number>(static_cast<In>(number) / static_cast<In>(ranks));
  }
  static constexpr bool finalizes = true;
};

/// With more output arrays, streaming stores were slower than ordinary ones.
constexpr size_t max_streams = 4;

/// Stores one aligned line with streaming stores, where available.
void stream_line(void* out, const void* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(static_cast<__m512i*>(out), *static_cast<const __m512i*>(from));
#elif defined(__AVX__)
  __m256i* const to = static_cast<__m256i*>(out);
  const __m256i* const line = static_cast<const __m256i*>(from);
  _mm256_stream_si256(to, line[0]);
  _mm256_stream_si256(to + 1, line[1]);
#elif defined(__SSE2__)
  __m128i* const to = static_cast<__m128i*>(out);
  const __m128i* const line = static_cast<const __m128i*>(from);
  for (size_t i = 0; i < cache_line_bytes / sizeof(__m128i); ++i) _mm_stream_si128(to + i, line[i]);
#else
  memcpy(out, from, cache_line_bytes);
#endif
}

/// Later flag stores are not ordered after streaming stores without this.
void order_streams() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/// Whether three and four arrays have specialised loops; only the most usual case is worth the code size.
template <class Element, class Op>
constexpr bool fuse_many = false;
template <>
constexpr bool fuse_many<Plain<float>, Sum> = true;

template <class Element, class Op>
struct Loops {
  using Stored = typename Element::Stored;
  using Number = typename Element::Computed;
  static constexpr bool stored_is_result = sizeof(Stored) == sizeof(Number) && !Op::finalizes;

  static Stored result(Number number, int ranks) { return Element::store(Op::finalize(number, ranks)); }

  /// A few inputs, each read once, and as many outputs or one. Loads precede stores, so an output may equal an input.
  template <size_t Inputs, size_t Outputs>
  static void fused(const void* const* in, void* const* out, size_t begin, size_t end, int ranks) {
    const Stored* const a = static_cast<const Stored*>(in[0]);
    const Stored* const b = static_cast<const Stored*>(in[1]);
    const Stored* const c = static_cast<const Stored*>(in[Inputs > 2 ? 2 : 0]);
    const Stored* const d = static_cast<const Stored*>(in[Inputs > 3 ? 3 : 0]);
    Stored* const to_a = static_cast<Stored*>(out[0]);
    Stored* const to_b = static_cast<Stored*>(out[Outputs > 1 ? 1 : 0]);
    Stored* const to_c = static_cast<Stored*>(out[Outputs > 2 ? 2 : 0]);
    Stored* const to_d = static_cast<Stored*>(out[Outputs > 3 ? 3 : 0]);
    DDRUN_INDEPENDENT_ITERATIONS
    for (size_t i = begin; i < end; ++i) {
      Number number = Op::apply(Element::load(a[i]), Element::load(b[i]));
      if constexpr (Inputs > 2) number = Op::apply(number, Element::load(c[i]));
      if constexpr (Inputs > 3) number = Op::apply(number, Element::load(d[i]));
      const Stored stored = result(number, ranks);
      to_a[i] = stored;
      if constexpr (Outputs > 1) to_b[i] = stored;
      if constexpr (Outputs > 2) to_c[i] = stored;
      if constexpr (Outputs > 3) to_d[i] = stored;
    }
  }

  static void reduce(const void* const* in, size_t inputs, void* const* out, size_t outputs, size_t begin, size_t end,
                     Stores stores, int ranks) {
    bool streaming = stores == Stores::streaming && inputs <= max_streams;
    for (size_t k = 0; streaming && k < outputs; ++k) {
      streaming = reinterpret_cast<uintptr_t>(out[k]) % cache_line_bytes == 0;
    }
    if (streaming) return streamed(in, inputs, out, outputs, begin, end, ranks);
    if (inputs == 2 && outputs == 2) return fused<2, 2>(in, out, begin, end, ranks);
    if (inputs == 2 && outputs == 1) return fused<2, 1>(in, out, begin, end, ranks);
    if constexpr (fuse_many<Element, Op>) {
      if (inputs == 3 && outputs == 3) return fused<3, 3>(in, out, begin, end, ranks);
      if (inputs == 4 && outputs == 4) return fused<4, 4>(in, out, begin, end, ranks);
    }
    blocked(in, inputs, out, outputs, begin, end, ranks);
  }

  /// With streaming stores for whole lines.
  static void streamed(const void* const* in, size_t inputs, void* const* out, size_t outputs, size_t begin, size_t end,
                       int ranks) {
    constexpr size_t line_elements = cache_line_bytes / sizeof(Stored);
    size_t i = (begin + line_elements - 1) / line_elements * line_elements;
    if (i > end) i = end;
    blocked(in, inputs, out, outputs, begin, i, ranks);
    alignas(cache_line_bytes) Number numbers[line_elements];
    alignas(cache_line_bytes) Stored stored[line_elements];
    for (; end - i >= line_elements; i += line_elements) {
      const Stored* const first = static_cast<const Stored*>(in[0]) + i;
      for (size_t j = 0; j < line_elements; ++j) numbers[j] = Element::load(first[j]);
      for (size_t k = 1; k < inputs; ++k) {
        const Stored* const from = static_cast<const Stored*>(in[k]) + i;
        for (size_t j = 0; j < line_elements; ++j) numbers[j] = Op::apply(numbers[j], Element::load(from[j]));
      }
      for (size_t j = 0; j < line_elements; ++j) stored[j] = result(numbers[j], ranks);
      for (size_t to = 0; to < outputs; ++to) stream_line(static_cast<Stored*>(out[to]) + i, stored);
    }
    order_streams();
    blocked(in, inputs, out, outputs, i, end, ranks);
  }

  /// Any number of inputs and outputs, through a block in the cache.
  static void blocked(const void* const* in, size_t inputs, void* const* out, size_t outputs, size_t begin, size_t end,
                      int ranks) {
    alignas(cache_line_bytes) Number numbers[block_elements];
    alignas(cache_line_bytes) Stored stored[stored_is_result ? 1 : block_elements];
    for (size_t at = begin; at < end; at += block_elements) {
      const size_t count = end - at < block_elements ? end - at : block_elements;
      const auto input = [&](size_t k) { return static_cast<const Stored*>(in[k]) + at; };
      size_t k = 1;
      load(numbers, input(0), count);
      for (; k + 1 < inputs; k += 2) accumulate_two(numbers, input(k), input(k + 1), count);
      if (k < inputs) accumulate(numbers, input(k), count);
      const void* results = numbers;
      if constexpr (!stored_is_result) {
        finish(stored, numbers, count, ranks);
        results = stored;
      }
      for (size_t to = 0; to < outputs; ++to)
        memcpy(static_cast<Stored*>(out[to]) + at, results, count * sizeof(Stored));
    }
  }

  static void accumulate_two(Number* numbers, const Stored* a, const Stored* b, size_t count) {
    DDRUN_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) {
      numbers[i] = Op::apply(Op::apply(numbers[i], Element::load(a[i])), Element::load(b[i]));
    }
  }

  static void load(void* acc, const void* in, size_t count) {
    Number* const numbers = static_cast<Number*>(acc);
    const Stored* const from = static_cast<const Stored*>(in);
    DDRUN_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) numbers[i] = Element::load(from[i]);
  }

  static void accumulate(void* acc, const void* in, size_t count) {
    Number* const numbers = static_cast<Number*>(acc);
    const Stored* const from = static_cast<const Stored*>(in);
    DDRUN_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) numbers[i] = Op::apply(numbers[i], Element::load(from[i]));
  }

  static void finish(void* out, const void* acc, size_t count, int ranks) {
    Stored* const to = static_cast<Stored*>(out);
    const Number* const numbers = static_cast<const Number*>(acc);
    DDRUN_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) to[i] = result(numbers[i], ranks);
  }
};

#ifdef __F16C__
/// Loops for half: whole lines of 64 bytes with F16C, the rest by Loops.
template <class Op>
struct HalfLoops {
  using Rest = Loops<Half, Op>;
  using Numbers = EightHalves::Numbers;
  static constexpr size_t eight = EightHalves::lanes;
  static constexpr size_t line_elements = cache_line_bytes / sizeof(uint16_t);
  static_assert(line_elements == 4 * eight);

  static Numbers finalize(Numbers numbers, int ranks) {
    if constexpr (Op::finalizes) return numbers / static_cast<float>(ranks);
    return numbers;
  }

  /// Loads precede stores, so an output may equal an input.
  static void reduce(const void* const* in, size_t inputs, void* const* out, size_t outputs, size_t begin, size_t end,
                     Stores stores, int ranks) {
    bool streaming = stores == Stores::streaming && inputs <= max_streams;
    for (size_t k = 0; streaming && k < outputs; ++k) {
      streaming = reinterpret_cast<uintptr_t>(out[k]) % cache_line_bytes == 0;
    }
    size_t i = begin;
    if (streaming) {
      i = (begin + line_elements - 1) / line_elements * line_elements;
      if (i > end) i = end;
      Rest::blocked(in, inputs, out, outputs, begin, i, ranks);
    }
    alignas(cache_line_bytes) uint16_t stored[line_elements];
    for (; end - i >= line_elements; i += line_elements) {
      // Four variables, as compilers keep an array of vectors in memory.
      const uint16_t* from = static_cast<const uint16_t*>(in[0]) + i;
      Numbers a = EightHalves::load(from);
      Numbers b = EightHalves::load(from + eight);
      Numbers c = EightHalves::load(from + 2 * eight);
      Numbers d = EightHalves::load(from + 3 * eight);
      for (size_t k = 1; k < inputs; ++k) {
        from = static_cast<const uint16_t*>(in[k]) + i;
        a = Op::apply(a, EightHalves::load(from));
        b = Op::apply(b, EightHalves::load(from + eight));
        c = Op::apply(c, EightHalves::load(from + 2 * eight));
        d = Op::apply(d, EightHalves::load(from + 3 * eight));
      }
      EightHalves::store(stored, finalize(a, ranks));
      EightHalves::store(stored + eight, finalize(b, ranks));
      EightHalves::store(stored + 2 * eight, finalize(c, ranks));
      EightHalves::store(stored + 3 * eight, finalize(d, ranks));
      for (size_t to = 0; to < outputs; ++to) {
        uint16_t* const place = static_cast<uint16_t*>(out[to]) + i;
        if (streaming) stream_line(place, stored);
        else memcpy(place, stored, sizeof(stored));
      }
    }
    if (streaming) order_streams();
    Rest::blocked(in, inputs, out, outputs, i, end, ranks);
  }

  static void load(void* acc, const void* in, size_t count) {
    float* const numbers = static_cast<float*>(acc);
    const uint16_t* const from = static_cast<const uint16_t*>(in);
    size_t i = 0;
    for (; count - i >= eight; i += eight) EightHalves::put(numbers + i, EightHalves::load(from + i));
    Rest::load(numbers + i, from + i, count - i);
  }

  static void accumulate(void* acc, const void* in, size_t count) {
    float* const numbers = static_cast<float*>(acc);
    const uint16_t* const from = static_cast<const uint16_t*>(in);
    size_t i = 0;
    for (; count - i >= eight; i += eight) {
      EightHalves::put(numbers + i, Op::apply(EightHalves::numbers_at(numbers + i), EightHalves::load(from + i)));
    }
    Rest::accumulate(numbers + i, from + i, count - i);
  }

  static void finish(void* out, const void* acc, size_t count, int ranks) {
    uint16_t* const to = static_cast<uint16_t*>(out);
    const float* const numbers = static_cast<const float*>(acc);
    size_t i = 0;
    for (; count - i >= eight; i += eight)
      EightHalves::store(to + i, finalize(EightHalves::numbers_at(numbers + i), ranks));
    Rest::finish(to + i, numbers + i, count - i, ranks);
  }
};

#endif

template <class Element, class Op>
struct LoopsFor {
  using Type = Loops<Element, Op>;
};
#ifdef __F16C__
template <class Op>
struct LoopsFor<Half, Op> {
  using Type = HalfLoops<Op>;
};
#endif

template <class Element, class Op>
constexpr Kernels make() {
  using Mine = typename LoopsFor<Element, Op>::Type;
  return {Mine::reduce, Mine::load, Mine::accumulate, Mine::finish};
}

/// Wrapping sums and products have equal bits for signed and unsigned types.
template <class Element, class Wrapping>
constexpr void fill(Kernels (&of)[all_ops.size()]) {
  of[static_cast<size_t>(ReduceOp::sum)] = make<Wrapping, Sum>();
  of[static_cast<size_t>(ReduceOp::prod)] = make<Wrapping, Product>();
  of[static_cast<size_t>(ReduceOp::max)] = make<Element, Maximum>();
  of[static_cast<size_t>(ReduceOp::min)] = make<Element, Minimum>();
  of[static_cast<size_t>(ReduceOp::avg)] = make<Element, Average>();
}

constexpr KernelTable make_table() {
  KernelTable table{};
  const auto row = [&table](DataType type) -> Kernels(&)[all_ops.size()] {
    return table.of[static_cast<size_t>(type)];
  };
  fill<Plain<int8_t>, Plain<uint8_t>>(row(DataType::int8));
  fill<Plain<uint8_t>, Plain<uint8_t>>(row(DataType::uint8));
  fill<Plain<int32_t>, Plain<uint32_t>>(row(DataType::int32));
  fill<Plain<uint32_t>, Plain<uint32_t>>(row(DataType::uint32));
  fill<Plain<int64_t>, Plain<uint64_t>>(row(DataType::int64));
  fill<Plain<uint64_t>, Plain<uint64_t>>(row(DataType::uint64));
  fill<Half, Half>(row(DataType::float16));
  fill<Plain<float>, Plain<float>>(row(DataType::float32));
  fill<Plain<double>, Plain<double>>(row(DataType::float64));
  fill<BFloat16, BFloat16>(row(DataType::bfloat16));
  return table;
}

constexpr KernelTable kernel_table = make_table();

}  // namespace

const KernelTable& DDRUN_KERNEL_TABLE() { return kernel_table; }

}  // namespace ddrun::collectives
