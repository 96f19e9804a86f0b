#pragma once

// One thread's part of the kernels, as plain C++17, so that the same arithmetic is tested on a CPU.
//
// A Sequence is treated as bytes. Its table is one period and the beginning of the next, so that a word at any byte
// offset is the middle of two table words.

#include <cstdint>

#ifdef __CUDACC__
#define DDRUN_HOST_DEVICE __host__ __device__ __forceinline__
#define DDRUN_UNROLL _Pragma("unroll")
#else
#define DDRUN_HOST_DEVICE inline
#define DDRUN_UNROLL
#endif

namespace ddrun::collectives::gpu {

/// Size in 32-bit words of the table of a period of `period` bytes.
DDRUN_HOST_DEVICE constexpr std::uint32_t table_words(std::uint32_t period) { return (period + 3) / 4 + 3; }

/// A position in a sequence, in bytes. Element p of a Sequence is period[(p % n + p / n * period_shift) % n]:
/// `in_period` is p % n, `shift` is p / n * period_shift, modulo n.
struct Position {
  std::uint32_t in_period;
  std::uint32_t shift;
};

struct Walk {
  std::uint32_t period;        ///< bytes
  std::uint32_t period_shift;  ///< bytes, less than period

  DDRUN_HOST_DEVICE Position position_at(std::uint64_t offset) const {
    const std::uint64_t periods = offset / period;
    return {static_cast<std::uint32_t>(offset % period),
            static_cast<std::uint32_t>(periods % period * period_shift % period)};
  }

  /// `step` is position_at(the distance in bytes).
  DDRUN_HOST_DEVICE void advance(Position& position, const Position& step) const {
    position.in_period += step.in_period;
    position.shift += step.shift;
    if (position.shift >= period) position.shift -= period;
    if (position.in_period >= period) {
      position.in_period -= period;
      position.shift += period_shift;
      if (position.shift >= period) position.shift -= period;
    }
  }

  DDRUN_HOST_DEVICE std::uint32_t in_table(const Position& position) const {
    const std::uint32_t from = position.in_period + position.shift;
    return from >= period ? from - period : from;
  }
};

DDRUN_HOST_DEVICE std::uint32_t byte_at(const std::uint32_t* table, const Walk& walk, Position position) {
  const std::uint32_t from = walk.in_table(position);
  return table[from / 4] >> (from % 4 * 8) & 0xffU;
}

/// The four bytes at `position`, of elements of `Element` bytes (up to 4).
template <int Element>
DDRUN_HOST_DEVICE std::uint32_t word_at(const std::uint32_t* table, const Walk& walk, Position position) {
  if (Element < 4 && position.in_period + 4 > walk.period) {
    // Across the end of a period, where the next one is rotated.
    const Position one{1, 0};
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i) {
      word |= byte_at(table, walk, position) << (8 * i);
      walk.advance(position, one);
    }
    return word;
  }
  const std::uint32_t from = walk.in_table(position);
  const std::uint32_t low = table[from / 4];
  if (Element >= 4) return low;
  const std::uint64_t both = static_cast<std::uint64_t>(table[from / 4 + 1]) << 32U | low;
  return static_cast<std::uint32_t>(both >> (from % 4 * 8));
}

template <int Element>
DDRUN_HOST_DEVICE std::uint32_t count_different(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t different = a ^ b;
  if (Element == 1) {
    std::uint32_t count = 0;
    for (int i = 0; i < 4; ++i) count += (different >> (8 * i) & 0xffU) != 0 ? 1 : 0;
    return count;
  }
  if (Element == 2) return ((different & 0xffffU) != 0 ? 1U : 0U) + (different >> 16U != 0 ? 1U : 0U);
  return different != 0 ? 1 : 0;
}

/// Division of an array into aligned words, with single elements before and after.
struct Cut {
  std::uint64_t head;   ///< bytes
  std::uint64_t units;  ///< words, or pairs of words for elements of 8 bytes
  std::uint64_t tail;   ///< bytes
};

template <int Element>
DDRUN_HOST_DEVICE Cut cut(const void* data, std::uint64_t bytes) {
  const std::uint64_t unit = Element == 8 ? 8 : 4;
  std::uint64_t head = (unit - reinterpret_cast<std::uintptr_t>(data) % unit) % unit;
  if (head > bytes) head = bytes;
  return {head, (bytes - head) / unit, (bytes - head) % unit};
}

/// Fills the share of `thread` of `threads`. `first` is the sequence's byte at the start of `data`.
template <int Element>
DDRUN_HOST_DEVICE void fill_part(std::uint8_t* data, std::uint64_t bytes, const std::uint32_t* table, Walk walk,
                                 std::uint64_t first, std::uint64_t thread, std::uint64_t threads) {
  const Cut parts = cut<Element>(data, bytes);
  if (thread < parts.head)
    data[thread] = static_cast<std::uint8_t>(byte_at(table, walk, walk.position_at(first + thread)));
  if (thread < parts.tail) {
    const std::uint64_t offset = bytes - parts.tail + thread;
    data[offset] = static_cast<std::uint8_t>(byte_at(table, walk, walk.position_at(first + offset)));
  }
  const std::uint64_t unit = Element == 8 ? 8 : 4;
  Position position = walk.position_at(first + parts.head + thread * unit);
  const Position step = walk.position_at(threads * unit);
  auto* const words = reinterpret_cast<std::uint32_t*>(data + parts.head);
  for (std::uint64_t i = thread; i < parts.units; i += threads) {
    if (Element == 8) {
      const std::uint32_t from = walk.in_table(position) / 4;
      words[2 * i] = table[from];
      words[2 * i + 1] = table[from + 1];
    } else {
      words[i] = word_at<Element>(table, walk, position);
    }
    walk.advance(position, step);
  }
}

/// The number of wrong elements in the share of `thread`. Several words are loaded before the first comparison, to hide
/// the memory latency. Neighbouring threads read neighbouring 4-byte words, so their accesses to the table are adjacent
/// too.
template <int Element>
DDRUN_HOST_DEVICE std::uint64_t count_wrong_part(const std::uint8_t* data, std::uint64_t bytes,
                                                 const std::uint32_t* table, Walk walk, std::uint64_t first,
                                                 std::uint64_t thread, std::uint64_t threads) {
  const Cut parts = cut<Element>(data, bytes);
  std::uint64_t wrong = 0;
  // Of the unaligned elements, each thread compares one.
  for (int part = 0; part < 2; ++part) {
    const std::uint64_t begin = part == 0 ? 0 : bytes - parts.tail;
    const std::uint64_t end = part == 0 ? parts.head : bytes;
    const std::uint64_t element = begin + thread * Element;
    if (element >= end) continue;
    bool same = true;
    for (int i = 0; i < Element; ++i) {
      same = same && data[element + i] == byte_at(table, walk, walk.position_at(first + element + i));
    }
    wrong += same ? 0 : 1;
  }
  const std::uint64_t unit = Element == 8 ? 8 : 4;
  Position position = walk.position_at(first + parts.head + thread * unit);
  const Position step = walk.position_at(threads * unit);
  constexpr int at_once = Element == 8 ? 4 : 8;
  std::uint64_t i = thread;
  if (Element == 8) {
    const auto* const pairs = reinterpret_cast<const std::uint64_t*>(data + parts.head);
    const auto differs = [&](std::uint64_t got) {
      const std::uint32_t from = walk.in_table(position) / 4;
      walk.advance(position, step);
      return got != (static_cast<std::uint64_t>(table[from + 1]) << 32U | table[from]) ? 1U : 0U;
    };
    for (; i + (at_once - 1) * threads < parts.units; i += at_once * threads) {
      std::uint64_t got[at_once];
      DDRUN_UNROLL
      for (int k = 0; k < at_once; ++k) got[k] = pairs[i + k * threads];
      DDRUN_UNROLL
      for (int k = 0; k < at_once; ++k) wrong += differs(got[k]);
    }
    for (; i < parts.units; i += threads) wrong += differs(pairs[i]);
    return wrong;
  }
  const auto* const words = reinterpret_cast<const std::uint32_t*>(data + parts.head);
  const auto differences = [&](std::uint32_t got) {
    const std::uint32_t count = count_different<Element>(got, word_at<Element>(table, walk, position));
    walk.advance(position, step);
    return count;
  };
  for (; i + (at_once - 1) * threads < parts.units; i += at_once * threads) {
    std::uint32_t got[at_once];
    DDRUN_UNROLL
    for (int k = 0; k < at_once; ++k) got[k] = words[i + k * threads];
    DDRUN_UNROLL
    for (int k = 0; k < at_once; ++k) wrong += differences(got[k]);
  }
  for (; i < parts.units; i += threads) wrong += differences(words[i]);
  return wrong;
}

}  // namespace ddrun::collectives::gpu
