#pragma once

#include <string>

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::agent {

/// The last words on the screen when a job did not succeed: the worker that failed first, how, why and where to look,
/// then what became of the others, in as few lines as that takes. Ends with a newline; empty if all went well.
/// A success whose output could not all be written gives one line that says so. `color`: with terminal colours.
[[nodiscard]] std::string failure_report(const JobResult& result, bool color);

/// --report: the whole result as JSON text, per attempt and rank. docs/debugging.md lists the keys; a key that is
/// there stays and keeps its meaning as long as "schema_version" is the same.
[[nodiscard]] std::string json_report(const JobResult& result);

/// Writes what json_report() gave so that a reader never sees half of it, as JUnit's XML (ci.hpp) where `path` ends in
/// ".xml". Fails with `unavailable` and names the file.
[[nodiscard]] Result<void> write_report(const std::string& path, const std::string& json);

/// For before the job begins: a job of days must not lose its report to a mistyped path. Fails with `invalid_argument`
/// or `unavailable` if a report could not be written there.
[[nodiscard]] Result<void> check_report_file(const std::string& path);

}  // namespace ddrun::agent
