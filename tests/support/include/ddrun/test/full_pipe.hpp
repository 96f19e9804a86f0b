#pragma once

#include <string>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::test {

/// A full pipe with an open read end, which the test can drain.
class FullPipe {
 public:
  FullPipe();
  /// For a child: its writes block. Close-on-exec unless duplicated.
  [[nodiscard]] int write_end() const { return write_.get(); }
  /// Reads until the data after the initial fill contains `text`; false on timeout.
  bool wait_for(const std::string& text);

 private:
  UniqueFd read_;
  UniqueFd write_;
  std::string seen_;
};

}  // namespace ddrun::test
