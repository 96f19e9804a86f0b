#pragma once

#include <string>
#include <vector>

#include "ddrun/agent/job_result.hpp"

namespace ddrun::agent {

/// Why this worker failed in as few lines as it says it itself: its error file's message or its last words, whichever
/// is not a complaint about others; else its last line on stderr. Plain text; empty if it said nothing.
[[nodiscard]] std::vector<std::string> reason_lines(const WorkerEnd& worker);

/// The same, or what the kernel tells, as part of a sentence.
[[nodiscard]] std::string reason_in_short(const WorkerEnd& worker);

/// Whether its error file's message says what its last words say.
[[nodiscard]] bool says_the_same(const WorkerError& error, const LastWords& words);

}  // namespace ddrun::agent
