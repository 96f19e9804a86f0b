#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "ddrun/base/result.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

/// Alignment of buffers, and unit of reserved memory.
inline constexpr std::size_t page_bytes = 4096;
constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

class Sequence;

/// Access to a back end's buffers, which may be in device memory. Spans hold whole elements of the sequence's type.
/// Blocks until done. Fails only on device errors (`unavailable`).
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  /// Writes elements first, first + 1, … of `sequence`.
  [[nodiscard]] virtual Result<void> fill(std::span<std::byte> data, const Sequence& sequence, std::uint64_t first) = 0;
  /// The number of elements that differ from those.
  [[nodiscard]] virtual Result<std::uint64_t> count_wrong(std::span<const std::byte> data, const Sequence& sequence,
                                                          std::uint64_t first) = 0;
  [[nodiscard]] virtual Result<void> set(std::span<std::byte> data, std::byte value) = 0;
  /// Copies between this memory and host memory; equal sizes.
  [[nodiscard]] virtual Result<void> read(std::span<std::byte> to, std::span<const std::byte> from) = 0;
  [[nodiscard]] virtual Result<void> write(std::span<std::byte> to, std::span<const std::byte> from) = 0;
};

/// Host memory. Lives as long as the program.
[[nodiscard]] Memory& host_memory();

/// A large private array: whole pages, zeroed, allocated on first touch.
class PrivateMemory {
 public:
  PrivateMemory() = default;
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;
  ~PrivateMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  /// `times` x `size` bytes; to be called once. Fails with `unavailable`.
  [[nodiscard]] Result<void> allocate(std::size_t size, std::size_t times) {
    const bool fits = size <= std::numeric_limits<std::size_t>::max() / times;
    const std::size_t bytes = size == 0 ? 1 : size * times;
    void* memory = MAP_FAILED;
    errno = ENOMEM;
    if (fits) memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return fail_errno(Errc::unavailable, concat("cannot get memory for ", times, " buffers of ", size, " bytes"),
                        errno);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    data_ = memory;
    bytes_ = bytes;
    return {};
  }

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ddrun::collectives
