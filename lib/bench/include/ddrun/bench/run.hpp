#pragma once

#include <unistd.h>

#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::bench {

struct Options;
struct RankEnv;

// What the program ends with (docs/allreduce.md).
inline constexpr int exit_ok = 0;
/// A wrong element or a lost rank; no memory or no connections.
inline constexpr int exit_failed = 1;
/// Options, environment, ranks that differ.
inline constexpr int exit_usage = 2;
/// Right, but a threshold was missed.
inline constexpr int exit_too_slow = 3;
/// A call did not end in time.
inline constexpr int exit_timeout = 4;
/// The chosen back end lacks a device or a library; "skipped" for ctest.
inline constexpr int exit_cannot_run_here = 77;

/// One line on stderr, in one piece so that lines of several ranks do not mix.
inline void print_error(std::string_view message) {
  const std::string line = concat("ddrun-allreduce: error: ", message, '\n');
  write_all(STDERR_FILENO, line.data(), line.size());
}

/// Finds the other ranks, measures what is asked for, and writes table and reports; returns the exit status. Blocks
/// until all that is done. Failures are already worded; `invalid_argument` is the user's.
[[nodiscard]] Result<int> run(const Options& options, const RankEnv& env);

}  // namespace ddrun::bench
