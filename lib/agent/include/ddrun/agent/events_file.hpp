#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "ddrun/base/background_writer.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::agent {

/// The line for output that `host` could not show.
[[nodiscard]] std::string output_lost_event(std::string_view host, std::uint64_t bytes);

/// --events FILE: one JSON object per line for each event of the job, appended, each with "time" (UTC) in front. The
/// keys are in docs/schemas/events.schema.json. `-` is standard output.
///
/// Its own thread writes whole lines, so that a hung disk or a slow reader does not block the agent. At most 4 MiB
/// wait; further lines are dropped with a warning. A write error loses lines and does not fail the job. Not
/// thread-safe.
class EventsFile {
 public:
  EventsFile();
  /// Calls finish().
  ~EventsFile();
  EventsFile(EventsFile&&) = default;
  EventsFile& operator=(EventsFile&&) = delete;

  /// Fails with `unavailable` for a descriptor, as /dev/fd/3, that the user has not opened. To be called before
  /// process::Launcher::create().
  static Result<void> check(const std::string& path);
  /// Fails with `unavailable` if the file cannot be opened for appending. A FIFO is opened once it has a reader; does
  /// not block.
  Result<void> open(const std::string& path);

  /// Whether `fd` is the same file; two writers would break each other's lines.
  [[nodiscard]] bool is_same_file(int fd) const;
  /// Lines go to `console`, which writes to the same file, until this is called with an empty function.
  void redirect_to(std::function<void(std::string_view lines)> console) { console_ = std::move(console); }

  /// `json`: an object on one line. No effect if no file is open.
  void write_line(const std::string& json);
  /// Complete lines from another agent of the job. No effect if no file is open.
  void write(std::string_view lines);

  /// Blocks until all lines are written, as long as some are taken every 2 s (60 s for a disk), and warns of the bytes
  /// lost. For a file the first loss is reported at the next event, and here the sum if it has grown.
  void finish();

 private:
  void record_loss(std::uint64_t bytes, std::string why);
  void warn_loss();
  [[nodiscard]] const char* stall_reason() const;

  std::unique_ptr<BackgroundWriter> writer_;
  bool is_disk_ = false;
  std::function<void(std::string_view)> console_;
  dev_t device_ = 0;  ///< with `inode_`: identity of the file
  ino_t inode_ = 0;
  bool warned_ = false;
  std::uint64_t lost_ = 0;  ///< bytes known to be lost
  std::uint64_t reported_lost_ = 0;
  std::string loss_reason_;
};

}  // namespace ddrun::agent
