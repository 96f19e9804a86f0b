#pragma once

#include <sys/ioctl.h>

#include <string>

#include "ddrun/base/unique_fd.hpp"

namespace ddrun::test {

/// A new pseudo-terminal, whose screen and keyboard are the test's. Ends the test as skipped where there are none.
struct Terminal {
  /// `size`: of the screen; left at 0 x 0 if null.
  explicit Terminal(const winsize* size = nullptr);

  /// Disables output processing.
  void make_raw() const;
  void resize(const winsize& size) const;
  void type(const std::string& keys) const;
  /// The output since the last call; does not block.
  [[nodiscard]] std::string shown() const;

  UniqueFd
      front;     ///< screen and keyboard: what is written to `tty` is read here, and the other way round; never blocks
  UniqueFd tty;  ///< for the program under test
};

}  // namespace ddrun::test
