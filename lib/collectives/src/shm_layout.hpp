#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ddrun::collectives {

// What lies in the shared segment: one Control, then per rank two Lines, two slots, a staging area and the two
// buffers (see ShmCommunicator::Layout). Everything starts as zero, which is valid.

inline constexpr std::size_t kLine = 64;
/// Neighbouring lines are often fetched in pairs; what different ranks write stays two lines apart.
inline constexpr std::size_t kApart = 2 * kLine;

/// Whoever cannot go on spinning sleeps on `bell`; `sleepers` spares the others a system call when nobody does.
struct Bell {
  std::atomic<std::uint32_t> rings;
  std::atomic<std::uint32_t> sleepers;
};

struct Control {
  alignas(kApart) Bell bell;
  /// How often any rank arrived at a gate; used when there are more ranks than processors.
  alignas(kApart) std::atomic<std::uint32_t> arrivals;
  /// 1 + the rank that was seen to be gone first; 0: none. Whoever gives up because of it comes later, so the cause
  /// is never mixed up with what followed.
  alignas(kApart) std::atomic<std::uint32_t> lost;
};

/// What one rank tells the others when it arrives at a gate. Two per rank, used in turn: a rank can be at most one
/// gate ahead, so the other line is still readable.
struct alignas(kApart) Line {
  std::atomic<std::uint32_t> gate;  ///< number of the gate arrived at; written last
  std::uint32_t kind;               ///< of the call: what all ranks must have alike
  std::uint64_t count;              ///< elements of the call
  std::uint64_t in;                 ///< offset of the input in the segment, or kPrivate
  std::uint64_t out;                ///< same for the output
  std::array<std::byte, 32> data;   ///< the input itself if it is this small: one cache line is all that moves
};
static_assert(offsetof(Line, data) + sizeof(Line::data) == kLine);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

inline constexpr std::uint64_t kPrivate = ~std::uint64_t{0};

}  // namespace ddrun::collectives
