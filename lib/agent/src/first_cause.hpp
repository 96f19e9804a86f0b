#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "ddrun/agent/job_result.hpp"

namespace ddrun::agent {

/// Finds out which worker of `attempt` failed first by its own evidence: its end, its error file, its last traceback or
/// fatal message. The first to end is often a victim, whose peer raised before and is still tearing down. Sets
/// `attempt.cause` and `attempt.cause_sign`; leaves them empty if nobody failed.
///
/// `stopped_at`: when ddrun had read what workers had written by the time it began to stop them. What came later is no
/// evidence: workers that are told to end complain, and crash, too.
void find_first_cause(AttemptResult& attempt, std::chrono::system_clock::time_point stopped_at);

/// Why this worker failed in as few lines as it says it itself: its error file's message or its last words, whichever
/// is not a complaint about others; else its last line on stderr. Plain text; empty if it said nothing.
[[nodiscard]] std::vector<std::string> reason_lines(const WorkerEnd& worker);

/// The same, or what the kernel tells, as part of a sentence.
[[nodiscard]] std::string reason_in_short(const WorkerEnd& worker);

/// Whether its error file's message says what its last words say.
[[nodiscard]] bool says_the_same(const WorkerError& error, const LastWords& words);

}  // namespace ddrun::agent
