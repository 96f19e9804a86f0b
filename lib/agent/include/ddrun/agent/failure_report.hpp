#pragma once

#include <string>

#include "ddrun/agent/job_result.hpp"

namespace ddrun::agent {

/// The last words on the screen when a job did not succeed: the worker that failed first, how, why and where to look,
/// then what became of the others, in as few lines as that takes. Ends with a newline; empty if all went well.
/// A success whose output could not all be written gives one line that says so. `color`: with terminal colours.
[[nodiscard]] std::string failure_report(const JobResult& result, bool color);

}  // namespace ddrun::agent
