#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/logs/tail_buffer.hpp"

namespace ddrun::agent {

/// Why a worker failed, in its own words: the last traceback or fatal message on its stderr. Plain text.
struct LastWords {
  std::vector<std::string> reason;           ///< one to three lines, such as "ValueError: boom"
  std::vector<std::string> text;             ///< all of it: the traceback with the reason, oldest line first
  std::chrono::system_clock::time_point at;  ///< when ddrun had read the reason
  std::uint64_t shown = 0;                   ///< lines that the consoles had shown by then
  std::size_t lines_after = 0;               ///< what the worker wrote to stderr afterwards
  bool of_a_victim = false;                  ///< it complains of others
};

/// Looks for them in the end of a worker's stderr: Python's tracebacks (chained, groups, of PyTorch with its
/// "[rank0]:"), faulthandler, C++'s terminate, the C library's aborts and assertions, sanitizers, CUDA, Rust, Go,
/// Fortran, Julia. What was raised while a failure was handled does not hide that failure if it only complains of
/// others.
[[nodiscard]] std::optional<LastWords> find_last_words(const std::vector<logs::TailLine>& tail);

}  // namespace ddrun::agent
