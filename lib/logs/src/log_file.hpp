#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::logs {

/// A file that grows at its end, and is set aside when it becomes too big: as `name.1` the first time, then as `name.2`
/// and so on, so that one file is renamed however many there are. What is there already is never overwritten. Writing
/// never fails for the caller: what does not fit on the disk is counted, and tried again with new bytes after a second.
/// The file then goes on with a whole line.
class LogFile {
 public:
  /// `rotate_bytes` 0: never rotated. Opens nothing yet.
  LogFile(std::string path, std::uint64_t rotate_bytes);

  /// Opens the file now, making its directory if need be. On failure errno is set and writing will try again.
  bool open();
  void write(std::string_view bytes);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t lost_bytes() const { return lost_; }
  /// "cannot write <path>: <reason>"; empty while nothing has failed.
  [[nodiscard]] const std::string& first_error() const { return first_error_; }
  /// "cannot set <path> aside: <reason>"; the file then grows on. Empty while that has not failed.
  [[nodiscard]] const std::string& rotation_error() const { return rotation_error_; }

 private:
  [[nodiscard]] std::size_t fitting(std::string_view bytes) const;
  void rotate();
  void put(std::string_view bytes);
  void failed(int err);
  void lose(std::string_view bytes);

  std::string path_;
  std::uint64_t rotate_bytes_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  int rotated_ = 0;  ///< number of the newest old file
  bool at_line_start_ = true;
  bool failing_ = false;
  bool lost_whole_lines_ = true;  ///< the last lost byte ended a line
  Clock::time_point retry_at_{};
  std::uint64_t lost_ = 0;
  std::string first_error_;
  std::string rotation_error_;
};

}  // namespace ddrun::logs
