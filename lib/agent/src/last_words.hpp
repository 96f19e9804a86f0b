#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/logs/tail_buffer.hpp"

namespace ddrun::agent {

/// Looks for last words in the end of a worker's stderr: Python's tracebacks (chained, groups, of PyTorch with its
/// "[rank0]:"), faulthandler, C++'s terminate, the C library's aborts and assertions, sanitizers, CUDA, Rust, Go,
/// Fortran, Julia. What was raised while a failure was handled does not hide that failure if it only complains of
/// others.
[[nodiscard]] std::optional<LastWords> find_last_words(const std::vector<logs::TailLine>& tail);

/// Whether a worker's complaint is about others: what the libraries of this field say when a peer, or the store, is
/// gone or does not answer. Whoever says so is a victim of a failure, as a rule, and not its cause. `text` may have
/// several lines; escape sequences are taken out.
[[nodiscard]] bool is_victims_words(std::string_view text);

}  // namespace ddrun::agent
