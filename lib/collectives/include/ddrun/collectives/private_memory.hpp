#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <limits>

#include "ddrun/base/result.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

/// A large array of this process: whole pages, zero, and untouched until it is used.
class PrivateMemory {
 public:
  PrivateMemory() = default;
  PrivateMemory(const PrivateMemory&) = delete;
  PrivateMemory& operator=(const PrivateMemory&) = delete;
  ~PrivateMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  /// Once, `times` x `size` bytes. Fails with `unavailable`.
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
