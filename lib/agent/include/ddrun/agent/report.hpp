#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ddrun/agent/ci.hpp"
#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::agent {

/// The text on the console for a job that did not succeed: the worker that failed first, its reason and log, then how
/// the others ended. Ends with a newline; empty after a success, or one line if output was lost. `color`: ANSI colours.
/// `columns`: of the quoted lines; a message, at the end of these, has twice as many as are usual.
[[nodiscard]] std::string failure_report(const JobResult& result, bool color, std::size_t columns = 100);

/// --report: the result as JSON, per attempt and rank. docs/debugging.md lists the keys; keys are only added while
/// "schema_version" is the same.
[[nodiscard]] std::string json_report(const JobResult& result);

/// `json` from json_report(), with bytes that could not be shown elsewhere.
[[nodiscard]] std::string add_lost_output(const std::string& json, std::uint64_t bytes, const std::string& why);

/// Replaces the file at `path` atomically by `json` from json_report(), as JUnit's XML (ci.hpp) if `path` ends in
/// ".xml". Waits up to 5 s for the reader of a FIFO. Fails with `unavailable` and names the file.
[[nodiscard]] Result<void> write_report(const std::string& path, const std::string& json);

/// Checks, before the job begins, that a report can be written to `path`. Fails with `invalid_argument` for a
/// directory, with `unavailable` if the file's directory is not writable.
[[nodiscard]] Result<void> check_report_file(const std::string& path);

/// Where a job's result goes from this machine.
struct ReportSinks {
  CiService ci = CiService::none;
  bool color = false;
  bool is_part = false;              ///< of a job of --hosts: the annotation is the head's
  bool shows_cause = true;           ///< the console has the failure report also where the cause is on another machine
  std::vector<std::string> files{};  ///< --report
};

/// Writes failure_report() to the console, the file, and GitHub's annotation and summary; adds to the result what the
/// console did not take, and sets its `code`.
void write_reports(JobResult& result, const ReportSinks& sinks);

}  // namespace ddrun::agent
