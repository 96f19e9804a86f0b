#include "sum_kernels.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace ddrun::collectives {

namespace {

// One block of a single array: a few of them and the block of sums stay in the first-level cache.
constexpr std::size_t kBlock = 1024;

/// A few ranks: load all, add, store to all, in registers. Loads come before stores, so in may be out.
template <std::size_t Ranks>
void sum_fused(std::span<const float* const> in, std::span<float* const> out, std::size_t begin, std::size_t end) {
  std::array<const float*, Ranks> from{};
  std::array<float*, Ranks> to{};
  std::copy_n(in.begin(), Ranks, from.begin());
  std::copy_n(out.begin(), Ranks, to.begin());
  std::size_t i = begin;
#ifdef __SSE2__
  for (; i + 8 <= end; i += 8) {
    __m128 low = _mm_loadu_ps(from[0] + i);
    __m128 high = _mm_loadu_ps(from[0] + i + 4);
    for (std::size_t r = 1; r < Ranks; ++r) {
      low = _mm_add_ps(low, _mm_loadu_ps(from[r] + i));
      high = _mm_add_ps(high, _mm_loadu_ps(from[r] + i + 4));
    }
    for (std::size_t r = 0; r < Ranks; ++r) {
      _mm_storeu_ps(to[r] + i, low);
      _mm_storeu_ps(to[r] + i + 4, high);
    }
  }
#endif
  for (; i < end; ++i) {
    float sum = from[0][i];
    for (std::size_t r = 1; r < Ranks; ++r) sum += from[r][i];
    for (std::size_t r = 0; r < Ranks; ++r) to[r][i] = sum;
  }
}

#ifdef __SSE2__
/// The same with stores past the cache, a whole line per array at a time. What is at the ends and fills no line is
/// stored normally.
template <std::size_t Ranks>
void sum_streamed(std::span<const float* const> in, std::span<float* const> out, std::size_t begin, std::size_t end) {
  constexpr std::size_t kVectors = 4;  // of four elements: one line
  std::size_t i = std::min(end, (begin + 15) / 16 * 16);
  sum_fused<Ranks>(in, out, begin, i);
  for (; i + 16 <= end; i += 16) {
    __m128 sum[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      sum[v] = _mm_loadu_ps(in[0] + i + 4 * v);
      for (std::size_t r = 1; r < Ranks; ++r) sum[v] = _mm_add_ps(sum[v], _mm_loadu_ps(in[r] + i + 4 * v));
    }
    for (std::size_t r = 0; r < Ranks; ++r) {
      for (std::size_t v = 0; v < kVectors; ++v) _mm_stream_ps(out[r] + i + 4 * v, sum[v]);
    }
  }
  _mm_sfence();  // streaming stores are not ordered by the flags that follow
  sum_fused<Ranks>(in, out, i, end);
}
#endif

/// Whether lines of all of `out` can be streamed to.
bool aligned(std::span<float* const> out) {
  return std::all_of(out.begin(), out.end(),
                     [](const float* to) { return reinterpret_cast<std::uintptr_t>(to) % 64 == 0; });
}

template <std::size_t Ranks>
void sum_few(std::span<const float* const> in, std::span<float* const> out, std::size_t begin, std::size_t end,
             Stores stores) {
#ifdef __SSE2__
  if (stores == Stores::streaming && aligned(out)) return sum_streamed<Ranks>(in, out, begin, end);
#endif
  (void)stores;
  sum_fused<Ranks>(in, out, begin, end);
}

void sum_blocked(std::span<const float* const> in, std::span<float* const> out, std::size_t begin, std::size_t end) {
  alignas(64) std::array<float, kBlock> sums;
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = std::min(kBlock, end - at);
    std::memcpy(sums.data(), in[0] + at, count * sizeof(float));
    std::size_t r = 1;
    for (; r + 1 < in.size(); r += 2) {
      const float* a = in[r] + at;
      const float* b = in[r + 1] + at;
      for (std::size_t i = 0; i < count; ++i) sums[i] = sums[i] + a[i] + b[i];
    }
    for (; r < in.size(); ++r) add(sums.data(), sums.data(), in[r] + at, count);
    // Streaming stores to many arrays in turn were slower here than ordinary ones.
    for (float* to : out) std::memcpy(to + at, sums.data(), count * sizeof(float));
  }
}

}  // namespace

void sum_to_all(std::span<const float* const> in, std::span<float* const> out, std::size_t begin, std::size_t end,
                Stores stores) {
  switch (in.size()) {
    case 2: return sum_few<2>(in, out, begin, end, stores);
    case 3: return sum_few<3>(in, out, begin, end, stores);
    case 4: return sum_few<4>(in, out, begin, end, stores);
    default: return sum_blocked(in, out, begin, end);
  }
}

void add(float* out, const float* a, const float* b, std::size_t count) {
  std::size_t i = 0;
#ifdef __SSE2__
  for (; i + 8 <= count; i += 8) {
    const __m128 low = _mm_add_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i));
    const __m128 high = _mm_add_ps(_mm_loadu_ps(a + i + 4), _mm_loadu_ps(b + i + 4));
    _mm_storeu_ps(out + i, low);
    _mm_storeu_ps(out + i + 4, high);
  }
#endif
  for (; i < count; ++i) out[i] = a[i] + b[i];
}

}  // namespace ddrun::collectives
