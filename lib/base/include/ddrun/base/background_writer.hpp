#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

/// Writes lines to a file or FIFO on a detached thread, so that a hanging disk or a reader that does not read blocks
/// only that thread. After an error the rest of that line is dropped, and the next ones are tried again. Used by one
/// thread.
class BackgroundWriter {
 public:
  /// Bytes that wait, at most.
  static constexpr std::size_t max_waiting_bytes = std::size_t{4} << 20U;

  struct Target {
    int file = -1;       ///< open for writing; never closed, since close() may hang, too
    std::string fifo{};  ///< or the path of a FIFO, which is opened as soon as it has a reader, and after it the next
  };
  struct Loss {
    std::uint64_t bytes = 0;
    std::string why{};     ///< text of errno; empty: no error
    bool stalled = false;  ///< not all was taken
  };

  /// What is to be written comes by add(), or with `by_pipe` by input(), which gives back pressure. `thread`: its name.
  /// Fails with `unavailable` without descriptors or threads.
  [[nodiscard]] static Result<std::unique_ptr<BackgroundWriter>> start(const char* thread, Target target,
                                                                       bool by_pipe = false);
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  /// Queues whole lines. False if there is no room for them: they are lost.
  [[nodiscard]] bool add(std::string_view lines);
  /// The write end of its pipe, blocking; reopen it by /proc/self/fd for non-blocking writes.
  [[nodiscard]] int input() const { return input_.get(); }

  /// The loss so far by an error.
  [[nodiscard]] Loss refused() const;
  /// Call after the last write, once. Blocks until all is written, as long as something is taken within each `stall`.
  /// What is left in a pipe then is not counted.
  [[nodiscard]] Loss finish(std::chrono::milliseconds stall);

 private:
  struct Work;
  BackgroundWriter(std::shared_ptr<Work> work, UniqueFd input) : work_(std::move(work)), input_(std::move(input)) {}

  std::shared_ptr<Work> work_;  ///< shared: the thread may stay in a hanging call
  UniqueFd input_;
};

}  // namespace ddrun
