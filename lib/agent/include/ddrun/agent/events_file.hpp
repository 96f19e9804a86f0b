#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

/// --events FILE: one JSON object per line for each event of the job, appended, each with "time" (UTC) in front. The
/// keys are in docs/several-machines.md. `-` is standard output.
///
/// A thread of its own writes, each line in one piece: who waits for a disk that hangs, for a reader that is slow or
/// has yet to come, answers no other machine. What waits is bounded; what is more is dropped, and said. A full disk
/// costs lines, not the job.
class EventsFile {
 public:
  EventsFile();
  /// As finish() does.
  ~EventsFile();
  EventsFile(EventsFile&&) = default;
  EventsFile& operator=(EventsFile&&) = delete;

  /// Fails with `unavailable` if the file cannot be opened for appending. A FIFO is opened when it has a reader.
  Result<void> open(const std::string& path);

  /// Whether `fd` leads to the same place. Two writers of one place would tear each other's lines.
  [[nodiscard]] bool is_same_file(int fd) const;
  /// From now on lines go through `console`, which has that place; empty: no longer.
  void redirect_to(std::function<void(std::string_view lines)> console) { console_ = std::move(console); }

  /// `json`: an object on one line. Nothing happens if no file is open.
  void write_line(const std::string& json);
  /// Lines that are finished, as another agent of the job has written them. Nothing happens if no file is open.
  void write(std::string_view lines);

  /// No more events come: waits for who reads, as long as something is read every two seconds (of a disk: every
  /// minute). All is in the file then, or it says what was lost. Of a file the first loss is said at the next event,
  /// and here the sum if it has grown.
  void finish();

 private:
  class Writer;
  class LineFile;

  void record_loss(std::uint64_t bytes, std::string why);
  void warn_loss();
  Result<void> start_writer(std::shared_ptr<Writer> writer);

  std::shared_ptr<Writer> writer_;
  std::function<void(std::string_view)> console_;
  dev_t device_ = 0;  ///< with `inode_`: the place
  ino_t inode_ = 0;
  bool warned_ = false;
  std::uint64_t lost_ = 0;  ///< bytes, as far as is known
  std::uint64_t reported_lost_ = 0;
  std::string loss_reason_;
};

}  // namespace ddrun::agent
