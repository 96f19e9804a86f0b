#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::collectives {

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
  [[nodiscard]] static Result<std::shared_ptr<Segment>> open(const std::string& where);

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  [[nodiscard]] const std::string& where() const { return where_; }
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
  std::string where_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t page_ = 0;  ///< bytes of a page of the file
};

}  // namespace ddrun::collectives
