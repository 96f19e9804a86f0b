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

void copy_out(float* to, const float* from, std::size_t count, Stores stores) {
#ifdef __SSE2__
  if (stores == Stores::streaming && reinterpret_cast<std::uintptr_t>(to) % 16 == 0) {
    std::size_t i = 0;
    for (; i + 4 <= count; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
    for (; i < count; ++i) to[i] = from[i];
    return;
  }
#endif
  (void)stores;
  std::memcpy(to, from, count * sizeof(float));
}

void sum_blocked(std::span<const float* const> in, std::span<float* const> out, std::size_t begin, std::size_t end,
                 Stores stores) {
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
    for (float* to : out) copy_out(to + at, sums.data(), count, stores);
  }
#ifdef __SSE2__
  if (stores == Stores::streaming) _mm_sfence();  // streaming stores are not ordered by the flags that follow
#endif
}

}  // namespace

void sum_to_all(std::span<const float* const> in, std::span<float* const> out, std::size_t begin, std::size_t end,
                Stores stores) {
  if (stores == Stores::streaming) return sum_blocked(in, out, begin, end, stores);
  switch (in.size()) {
    case 2: return sum_fused<2>(in, out, begin, end);
    case 3: return sum_fused<3>(in, out, begin, end);
    case 4: return sum_fused<4>(in, out, begin, end);
    default: return sum_blocked(in, out, begin, end, stores);
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
