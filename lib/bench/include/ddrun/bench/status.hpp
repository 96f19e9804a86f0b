#pragma once

#include <unistd.h>

#include <string_view>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::bench {

// What the program ends with (docs/allreduce.md).
inline constexpr int kRight = 0;
inline constexpr int kFailed = 1;          ///< a wrong element or a lost rank; no memory or no connections
inline constexpr int kUsage = 2;           ///< options, environment, ranks that differ
inline constexpr int kTooSlow = 3;         ///< right, but a threshold was missed
inline constexpr int kLate = 4;            ///< a call did not end in time
inline constexpr int kCannotRunHere = 77;  ///< the chosen back end lacks a device or a library; "skipped" for ctest

/// One line on stderr, in one piece so that lines of several ranks do not mix.
inline void say_error(std::string_view message) {
  const std::string line = concat("ddrun-allreduce: error: ", message, '\n');
  write_all(STDERR_FILENO, line.data(), line.size());
}

}  // namespace ddrun::bench
