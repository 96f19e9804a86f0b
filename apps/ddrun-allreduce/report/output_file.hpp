#pragma once

#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::allreduce {

/// A file that is written once, at the end. It is opened before the run, so that a wrong path does not cost a
/// measurement, and its former content stays until then.
class OutputFile {
 public:
  OutputFile() = default;
  /// `option` is for the words of errors. "-" is standard output. `invalid_argument` if it cannot be written.
  [[nodiscard]] static Result<OutputFile> open(std::string option, std::string path);

  explicit operator bool() const { return static_cast<bool>(fd_); }
  /// Replaces what was in it; a pipe, a device or a stream of this process gets it as it is. `unavailable`, for
  /// example, on a full disk.
  [[nodiscard]] Result<void> write(std::string_view text);

 private:
  std::string option_;
  std::string path_;
  UniqueFd fd_;
  bool replaces_ = false;
};

}  // namespace ddrun::allreduce
