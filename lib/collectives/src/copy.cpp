#include "copy.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace ddrun::collectives {

namespace {

/// Fits in the first-level cache while it is copied to several destinations.
constexpr std::size_t part_bytes = 8 << 10;

#ifdef __SSE2__

constexpr std::size_t cache_line_bytes = 64;

void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  const std::size_t misplaced = reinterpret_cast<std::uintptr_t>(to) % cache_line_bytes;
  const std::size_t head = std::min(bytes, misplaced == 0 ? 0 : cache_line_bytes - misplaced);
  std::memcpy(to, from, head);
  std::size_t done = head;
  for (; bytes - done >= cache_line_bytes; done += cache_line_bytes) {
    const auto* const line = reinterpret_cast<const __m128i*>(from + done);
    auto* const out = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(line);
    const __m128i b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2);
    const __m128i d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  std::memcpy(to + done, from + done, bytes - done);
}

void order_streams() { _mm_sfence(); }

#else

void stream(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void order_streams() {}

#endif

}  // namespace

void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores) {
  copy_to_all({&to, 1}, from, bytes, stores);
}

void copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, Stores stores) {
  const bool streaming = stores == Stores::streaming;
  const std::size_t part = to.size() > 1 ? part_bytes : bytes;
  for (std::size_t done = 0; done < bytes; done += part) {
    const std::size_t count = std::min(part, bytes - done);
    for (std::byte* const place : to) {
      if (place == from) continue;
      if (streaming) stream(place + done, from + done, count);
      else std::memcpy(place + done, from + done, count);
    }
  }
  if (streaming) order_streams();
}

void rotate(std::span<std::byte* const> places, std::size_t bytes) {
  std::array<std::byte, part_bytes> kept;
  for (std::size_t done = 0; done < bytes; done += part_bytes) {
    const std::size_t count = std::min(part_bytes, bytes - done);
    std::memcpy(kept.data(), places.back() + done, count);
    for (std::size_t i = places.size() - 1; i > 0; --i) std::memcpy(places[i] + done, places[i - 1] + done, count);
    std::memcpy(places.front() + done, kept.data(), count);
  }
}

}  // namespace ddrun::collectives
