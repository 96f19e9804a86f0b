#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::collectives {

// What lies in the shared segment: one Control, then per rank two Lines, two slots, a staging area and the two
// buffers (see Layout). Everything starts as zero, which is valid.

inline constexpr std::size_t cache_line = 64;
/// Neighbouring lines are often fetched in pairs; what different ranks write stays two lines apart.
inline constexpr std::size_t lines_apart = 2 * cache_line;

/// A rank that cannot go on spinning sleeps on `bell`; `sleepers` spares the others a system call when none does.
struct WaitQueue {
  std::atomic<std::uint32_t> wakeups;
  std::atomic<std::uint32_t> sleepers;
};

struct Control {
  alignas(lines_apart) WaitQueue wait_queue;
  /// How often any rank arrived at a gate; used when there are more ranks than processors.
  alignas(lines_apart) std::atomic<std::uint32_t> arrivals;
  /// 1 + the rank that was seen to be gone first; 0: none. A rank that gives up because of it comes later, so the cause
  /// is never mixed up with what followed.
  alignas(lines_apart) std::atomic<std::uint32_t> lost;
  /// Not 0: a rank has given up a call in which others may work on its private memory, and this is that call's number
  /// among all such calls. They leave its memory alone from then on.
  std::atomic<std::uint32_t> abandoned;
};

/// What one rank tells the others when it arrives at a gate. Two per rank, used in turn: a rank can be at most one
/// gate ahead, so the other line is still readable. After work in other ranks' private memory `kind` is 0 or an errno,
/// and `count` the rank whose memory was not to be reached.
struct alignas(lines_apart) Line {
  std::atomic<std::uint32_t> phase;  ///< number of the gate arrived at; written last
  std::uint32_t kind;                ///< of the call: what all ranks must have alike
  std::uint64_t count;               ///< elements of the call
  std::uint64_t in;                  ///< offset of the input in the segment, or not_shared
  std::uint64_t out;                 ///< same for the output
  /// The input itself if it is this small: one cache line is all that moves. Else Addresses. The last bytes of a
  /// send_recv are Partners.
  std::array<std::byte, 32> data;
  /// 1 + the processor that the rank last arrived on; 0: not known. In a cache line of its own, since it is read by who
  /// waits and seldom changes.
  alignas(cache_line) std::atomic<std::int32_t> processor;
  /// Of the first of a rank's two: not 0 while it may be at work on other ranks' private memory.
  std::atomic<std::uint32_t> working;
};
static_assert(offsetof(Line, data) + sizeof(Line::data) == cache_line);
static_assert(sizeof(Line) == lines_apart);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

inline constexpr std::uint64_t not_shared = ~std::uint64_t{0};

/// Where input and output are in the rank's own process, for peers that can reach into it.
struct Addresses {
  std::uint64_t in;
  std::uint64_t out;
};

/// Of a send_recv: which rank gets this one's input, and whose input this one gets.
struct Partners {
  std::int32_t to;
  std::int32_t from;
};

constexpr std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

/// Offsets in the segment.
class Layout {
 public:
  /// Bytes of a slot: reading everything costs ranks^2 x size in all, but saves the second gate.
  static constexpr std::size_t slot_bytes = 8 << 10;

  Layout(int size, std::size_t buffer_bytes)
      : ranks_(static_cast<std::size_t>(size)),
        staging_bytes_(std::max(min_staging_bytes, ranks_ * min_staged_block)),
        buffer_bytes_(buffer_bytes) {}

  [[nodiscard]] std::size_t lines() const { return round_up(sizeof(Control), page_bytes); }
  [[nodiscard]] std::size_t slot(int rank, unsigned parity) const {
    return slots() + (2 * at(rank) + parity) * slot_bytes;
  }
  /// Two places per rank that are filled in turn with what it gives, and two for what it has reduced.
  [[nodiscard]] std::size_t packed(int rank, unsigned parity) const {
    return staging() + (4 * at(rank) + parity) * staging_bytes_;
  }
  [[nodiscard]] std::size_t reduced(int rank, unsigned parity) const { return packed(rank, 2 + parity); }
  /// Bytes of each of these.
  [[nodiscard]] std::size_t staging_bytes() const { return staging_bytes_; }
  /// The two that the caller uses.
  [[nodiscard]] std::size_t buffer(int rank, unsigned which) const {
    return buffers() + (2 * at(rank) + which) * round_up(buffer_bytes_, page_bytes);
  }
  [[nodiscard]] std::size_t buffer_bytes() const { return buffer_bytes_; }
  /// Where the buffers begin, and everything ends.
  [[nodiscard]] std::size_t buffers() const { return staging() + 4 * ranks_ * staging_bytes_; }
  [[nodiscard]] std::size_t end() const { return buffers() + 2 * ranks_ * round_up(buffer_bytes_, page_bytes); }

 private:
  static constexpr std::size_t page_bytes = 4096;
  /// What is given, and what is reduced of it, twice each, fits into a second-level cache.
  static constexpr std::size_t min_staging_bytes = 256 << 10;
  static constexpr std::size_t min_staged_block = 1 << 10;

  static constexpr std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::size_t slots() const { return round_up(lines() + ranks_ * 2 * sizeof(Line), page_bytes); }
  [[nodiscard]] std::size_t staging() const { return slots() + ranks_ * 2 * slot_bytes; }

  std::size_t ranks_;
  std::size_t staging_bytes_;
  std::size_t buffer_bytes_;
};

/// Memory shared by the processes of one machine.
///
/// It is a memfd, which the others open as /proc/<pid>/fd/<number>: it has no name in any file system, so nothing
/// is left behind even if every rank is killed at once, and a container with a /dev/shm of 64 MB does not limit
/// it. (A name in /dev/shm that is unlinked soon would have both faults.) The file is sealed against shrinking and
/// its pages are reserved before use: running out of memory is an error of `reserve`, not a SIGBUS later.
class Segment {
 public:
  /// All zero. `bytes` is only address space until it is reserved or touched.
  [[nodiscard]] static Result<std::shared_ptr<Segment>> create(std::size_t bytes);

  /// `where` is what the creator's where() said; the creator must still have it open. Ranks that are threads of
  /// one process get the same mapping. Fails with `unavailable` if this process may not or cannot reach it.
  [[nodiscard]] static Result<std::shared_ptr<Segment>> open(const std::string& location);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  [[nodiscard]] const std::string& location() const { return location_; }
  [[nodiscard]] std::byte* data() const { return data_; }
  /// As asked for; the file itself is whole pages.
  [[nodiscard]] std::size_t size() const { return size_; }
  /// "2 MiB pages" where the system has reserved enough of them, else "4 KiB pages", or that some may be larger.
  [[nodiscard]] std::string pages() const;

  /// Gives [offset, offset + bytes) real memory. Fails with `unavailable`.
  [[nodiscard]] Result<void> reserve(std::size_t offset, std::size_t bytes) const;

 private:
  Segment() = default;
  [[nodiscard]] bool make(std::size_t bytes, bool huge);
  [[nodiscard]] Result<void> map(std::size_t bytes);

  UniqueFd fd_;
  std::string location_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t page_ = 0;  ///< bytes of a page of the file
};

}  // namespace ddrun::collectives
