#pragma once

#include <string>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::test {

/// A pipe that takes nothing, and that somebody could read: the test, once it wants to.
class FullPipe {
 public:
  FullPipe();
  /// For a process that the test starts: its writes wait. Closed there by exec, unless it is duplicated first.
  [[nodiscard]] int write_end() const { return write_.get(); }
  /// Reads until what came, behind what filled the pipe, contains `text`; false if that takes too long.
  bool wait_for(const std::string& text);

 private:
  UniqueFd read_;
  UniqueFd write_;
  std::string seen_;
};

}  // namespace ddrun::test
