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

// Content of the shared segment: one Control, then per rank two Lines, two slots, a staging area and two buffers (see
// Layout). All zero is the valid initial state.

inline constexpr std::size_t cache_line = 64;
/// Adjacent lines are often prefetched in pairs, so data written by different ranks is two lines apart.
inline constexpr std::size_t lines_apart = 2 * cache_line;

/// Ranks that stop spinning sleep on `wakeups`; with `sleepers` at 0 the others save the system call.
struct WaitQueue {
  std::atomic<std::uint32_t> wakeups;
  std::atomic<std::uint32_t> sleepers;
};

struct Control {
  alignas(lines_apart) WaitQueue queue;
  /// Number of arrivals of all ranks at barriers; used if oversubscribed.
  alignas(lines_apart) std::atomic<std::uint32_t> arrivals;
  /// 1 + the first rank detected as exited; 0: none. Ranks that exit as a consequence come later and do not change it.
  alignas(lines_apart) std::atomic<std::uint32_t> lost;
  /// Not 0: a rank has abandoned a call in which peers may access its private memory; the number of that call among
  /// those. Peers stop accessing its memory.
  std::atomic<std::uint32_t> abandoned;
};

/// Announcement of one rank at a barrier. Double-buffered: a rank can be at most one barrier ahead, so the previous
/// line stays readable. After access to private memory, `kind` is 0 or an errno and `count` the rank whose memory was
/// inaccessible.
struct alignas(lines_apart) Line {
  std::atomic<std::uint32_t> phase;  ///< number of the barrier arrived at; written last
  std::uint32_t kind;                ///< properties of the call that must be equal on all ranks
  std::uint64_t count;               ///< elements of the call
  std::uint64_t in;                  ///< offset of the input in the segment, or not_shared
  std::uint64_t out;                 ///< same for the output
  /// The input itself if it fits, so that one cache line is all that moves; else Addresses. For send_recv the last
  /// bytes are Partners.
  std::array<std::byte, 32> data;
  /// 1 + the processor on which the rank last arrived; 0: unknown. In a separate cache line, since waiting ranks read
  /// it and it seldom changes.
  alignas(cache_line) std::atomic<std::int32_t> processor;
  /// In the first line of a rank: not 0 while it may access other ranks' private memory.
  std::atomic<std::uint32_t> working;
};
static_assert(offsetof(Line, data) + sizeof(Line::data) == cache_line);
static_assert(sizeof(Line) == lines_apart);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

inline constexpr std::uint64_t not_shared = ~std::uint64_t{0};

/// Addresses of input and output in the rank's process, for cross-process copies.
struct Addresses {
  std::uint64_t in;
  std::uint64_t out;
};

/// The destination and source ranks of a send_recv.
struct Partners {
  std::int32_t to;
  std::int32_t from;
};

constexpr std::size_t round_up(std::size_t value, std::size_t to) { return (value + to - 1) / to * to; }

/// Offsets in the segment, in bytes.
class Layout {
 public:
  /// Bytes of a slot: all ranks together read ranks^2 x size, but save the second barrier.
  static constexpr std::size_t slot_bytes = 8 << 10;

  Layout(int size, std::size_t buffer_bytes)
      : ranks_(static_cast<std::size_t>(size)),
        staging_bytes_(std::max(min_staging_bytes, ranks_ * min_staged_block)),
        buffer_bytes_(buffer_bytes) {}

  [[nodiscard]] std::size_t lines() const { return round_up(sizeof(Control), page_bytes); }
  [[nodiscard]] std::size_t slot(int rank, unsigned parity) const {
    return slots() + (2 * at(rank) + parity) * slot_bytes;
  }
  /// Two staging areas per rank for packed input, used alternately, and two for reduced data.
  [[nodiscard]] std::size_t packed(int rank, unsigned parity) const {
    return staging() + (4 * at(rank) + parity) * staging_bytes_;
  }
  [[nodiscard]] std::size_t reduced(int rank, unsigned parity) const { return packed(rank, 2 + parity); }
  [[nodiscard]] std::size_t staging_bytes() const { return staging_bytes_; }
  /// The rank's send (0) or receive (1) buffer.
  [[nodiscard]] std::size_t buffer(int rank, unsigned which) const {
    return buffers() + (2 * at(rank) + which) * round_up(buffer_bytes_, page_bytes);
  }
  [[nodiscard]] std::size_t buffer_bytes() const { return buffer_bytes_; }
  /// Start of the buffers, and end of the segment.
  [[nodiscard]] std::size_t buffers() const { return staging() + 4 * ranks_ * staging_bytes_; }
  [[nodiscard]] std::size_t end() const { return buffers() + 2 * ranks_ * round_up(buffer_bytes_, page_bytes); }

 private:
  static constexpr std::size_t page_bytes = 4096;
  /// Packed and reduced data, twice each, fit in a second-level cache.
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
/// It is a memfd, which peers open as /proc/<pid>/fd/<number>. It has no name in a file system, so nothing is left
/// behind even if all ranks are killed at once, and the size of /dev/shm (64 MB in many containers) does not limit it.
/// The file is sealed against shrinking and its pages are reserved before use: a lack of memory is an error of
/// reserve(), not a later SIGBUS.
class Segment {
 public:
  /// All zero. What follows the first `reserved` bytes is only address space until reserved. `may_be_huge`: of 2 MiB
  /// pages if the system has reserved enough of them; a control group may still deny some of them to reserve().
  [[nodiscard]] static Result<std::shared_ptr<Segment>> create(std::size_t bytes, std::size_t reserved,
                                                               bool may_be_huge = true);
  [[nodiscard]] static bool has_huge_pages(const std::string& location);

  /// `location` is the creator's location(); the creator must still have the file open. Ranks that are threads of one
  /// process share the mapping. Fails with `unavailable` if this process cannot access it.
  [[nodiscard]] static Result<std::shared_ptr<Segment>> open(const std::string& location);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  [[nodiscard]] const std::string& location() const { return location_; }
  [[nodiscard]] std::byte* data() const { return data_; }
  /// As requested; the file itself consists of whole pages.
  [[nodiscard]] std::size_t size() const { return size_; }
  /// "2 MiB pages" if the system has reserved enough of them, else "4 KiB pages" or a note that some may be larger.
  [[nodiscard]] std::string pages() const;

  /// Allocates memory for [offset, offset + bytes). Fails with `unavailable`.
  [[nodiscard]] Result<void> reserve(std::size_t offset, std::size_t bytes) const;

 private:
  Segment() = default;
  [[nodiscard]] bool make(std::size_t bytes, bool huge);
  [[nodiscard]] Result<void> map(std::size_t bytes);

  UniqueFd fd_;
  std::string location_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool huge_ = false;
  std::size_t page_ = 0;  ///< page size of the file, in bytes
};

}  // namespace ddrun::collectives
