#pragma once

#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

/// --events FILE: one JSON object per line for each event of the job, appended, each with "time" (UTC) in front. The
/// keys are in docs/several-machines.md. A line is written at once and in one piece; a full disk costs lines, not the
/// job.
class EventsFile {
 public:
  /// Fails with `unavailable` if the file cannot be opened for appending.
  Result<void> open(const std::string& path);

  /// `json`: an object on one line. Nothing happens if no file is open.
  void write_line(const std::string& json);
  /// Lines that are finished, as another agent of the job has written them.
  void write(std::string_view lines);

 private:
  UniqueFd file_;
  bool torn_ = false;  ///< the last line has no end
  bool complained_ = false;
};

}  // namespace ddrun::agent
