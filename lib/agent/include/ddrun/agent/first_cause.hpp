#pragma once

#include <chrono>

#include "ddrun/agent/job_result.hpp"

namespace ddrun::agent {

/// Finds out which worker of `attempt` failed first by its own evidence: its end, its error file, its last traceback or
/// fatal message. The first to end is often a victim, whose peer raised before and is still tearing down. Sets
/// `attempt.cause` and `attempt.cause_sign`; leaves them empty if nobody failed.
///
/// `stopped_at`: when ddrun had read what workers had written by the time it began to stop them. What came later is no
/// evidence: workers that are told to end complain, and crash, too.
void find_first_cause(AttemptResult& attempt, std::chrono::system_clock::time_point stopped_at);

}  // namespace ddrun::agent
