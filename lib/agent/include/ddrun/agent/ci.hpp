#pragma once

#include <string>
#include <string_view>

#include "ddrun/base/environment.hpp"

// How a job is shown on the pages of continuous integration (--ci): its output folded, its failure where it is seen.
// All of it is made from json_report(), also where the job ran elsewhere.

namespace ddrun::agent {

enum class CiService { none, github, gitlab };

/// What `asked` (auto, github, gitlab, none) means here. A ddrun in a worker of another ddrun finds none by itself: the
/// outer one shows the job.
[[nodiscard]] CiService detect_ci(std::string_view asked, const Environment& environment);
/// The word of --ci.
[[nodiscard]] std::string_view ci_name(CiService service);

/// Lines for stderr, before and after all output of the job, that fold it; empty for `none`. Each is whole by itself:
/// what stands before it may be half a line. stdout has only what workers write.
struct CiFold {
  std::string begins;
  std::string ends;
};
[[nodiscard]] CiFold ci_fold(CiService service, std::string_view program);

/// `text` so that no line of it, which a worker may have written, is a command to GitHub's runner.
[[nodiscard]] std::string escape_runner_commands(std::string text);

/// "::error file=…,line=…,title=…::…" with a newline: who failed and why, at the innermost frame of its Python
/// traceback that lies in `workspace` and in no installed package. Empty after a success or a signal.
[[nodiscard]] std::string github_annotation(const std::string& json, const std::string& workspace);
/// A table in Markdown, at most some KiB.
[[nodiscard]] std::string github_summary(const std::string& json);
/// Writes the one to stderr and appends the other to $GITHUB_STEP_SUMMARY; a failure is said. Blocks as files do.
void report_to_github(const std::string& json);

/// --report=x.xml: a test suite with a case for each rank of the last attempt, and "job" where it failed by no rank.
[[nodiscard]] std::string junit_report(const std::string& json);

}  // namespace ddrun::agent
