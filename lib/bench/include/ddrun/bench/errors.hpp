#pragma once

#include <unistd.h>

#include <string_view>

#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::bench {

// Exit statuses (docs/allreduce.md).
inline constexpr int exit_ok = 0;
/// A wrong element, a lost rank, too little memory, or failed connections.
inline constexpr int exit_failed = 1;
/// Invalid options or environment, or ranks with different options.
inline constexpr int exit_usage = 2;
/// Results correct, but a threshold was missed.
inline constexpr int exit_too_slow = 3;
inline constexpr int exit_timeout = 4;
/// The requested back end lacks a device or a library; ctest counts it as skipped.
inline constexpr int exit_cannot_run_here = 77;

/// Writes one line to stderr with a single write(), so that lines of several ranks do not mix.
inline void print_error(std::string_view message) {
  write_shared(STDERR_FILENO, concat("ddrun-allreduce: error: ", message, '\n'));
}

}  // namespace ddrun::bench
