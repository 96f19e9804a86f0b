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
/// A file is written at once, each line in one piece, unless its disk is not to be waited for; a full disk costs lines,
/// not the job. For a pipe, a FIFO or a device a thread of its own waits: for a reader that has yet to come, and for
/// one that is slow. What waits is bounded; what is more is dropped, and said.
class EventsFile {
 public:
  EventsFile();
  /// As finish() does.
  ~EventsFile();
  EventsFile(const EventsFile&) = delete;
  EventsFile& operator=(const EventsFile&) = delete;

  /// Who waits for the disk of a regular file.
  enum class DiskWait { caller, thread };
  /// Fails with `unavailable` if the file cannot be opened for appending. A FIFO is opened when it has a reader.
  Result<void> open(const std::string& path, DiskWait who = DiskWait::caller);

  /// Whether `fd` leads to the same place. Two writers of one place would tear each other's lines.
  [[nodiscard]] bool same_place(int fd) const;
  /// From now on lines go through `console`, which has that place; empty: no longer.
  void share(std::function<void(std::string_view lines)> console) { console_ = std::move(console); }

  /// `json`: an object on one line. Nothing happens if no file is open.
  void write_line(const std::string& json);
  /// Lines that are finished, as another agent of the job has written them.
  void write(std::string_view lines);

  /// No more events come: waits for who reads, as long as something is read every two seconds (of a disk: every
  /// minute). Then says what was lost. Of a file the first loss is said at once, and the sum if it has grown.
  void finish();

 private:
  class Feed;
  class LineFile;

  void note_loss(std::uint64_t bytes, std::string why);
  void say_loss();
  Result<void> start_feed(std::shared_ptr<Feed> feed);

  std::unique_ptr<LineFile> file_;  ///< a regular file that is written at once
  std::shared_ptr<Feed> feed_;      ///< anything else
  std::function<void(std::string_view)> console_;
  dev_t device_ = 0;  ///< with `inode_`: the place
  ino_t inode_ = 0;
  bool complained_ = false;
  std::uint64_t lost_ = 0;  ///< bytes, as far as is known
  std::uint64_t said_lost_ = 0;
  std::string why_lost_;
};

}  // namespace ddrun::agent
