#pragma once

#include <memory>
#include <string>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::remote {

/// Writes into a file on a thread of its own, so that a disk that hangs holds up that thread alone. Its input is a
/// pipe: what the pipe has no room for has to wait, and who watches the pipe knows when.
class DiskWriter {
 public:
  /// `file` is borrowed, and written to where its position is. Null unless it is a regular file, and where the system
  /// has no descriptors or threads left.
  [[nodiscard]] static std::unique_ptr<DiskWriter> start(int file);
  ~DiskWriter();
  DiskWriter(const DiskWriter&) = delete;
  DiskWriter& operator=(const DiskWriter&) = delete;

  /// The end of the pipe to write to, which blocks; a view that does not can be opened by /proc/self/fd.
  [[nodiscard]] int input() const { return input_.get(); }
  /// No more is written to the input. Waits until the disk has taken all, but not for one that takes nothing
  /// for a minute. Why something is missing; empty if nothing is.
  [[nodiscard]] std::string finish();

 private:
  struct Work;
  DiskWriter(UniqueFd input, std::shared_ptr<Work> work) : input_(std::move(input)), work_(std::move(work)) {}

  UniqueFd input_;
  std::shared_ptr<Work> work_;  ///< the thread may be left behind in a write that never ends
};

}  // namespace ddrun::remote
