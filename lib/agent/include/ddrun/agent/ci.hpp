#pragma once

#include <string>
#include <string_view>

#include "ddrun/base/environment.hpp"

// Output for continuous integration (--ci): folded sections, annotations and summaries, made from json_report().

namespace ddrun::agent {

enum class CiService { none, github, gitlab };

/// The service for `asked` (auto, github, gitlab, none). `auto` is none in a worker of another ddrun, which reports the
/// job itself.
[[nodiscard]] CiService detect_ci(std::string_view asked, const Environment& environment);
/// The value of --ci.
[[nodiscard]] std::string_view ci_name(CiService service);

/// Text for stderr before and after the job's output, which folds it; empty for `none`. It begins with a newline where
/// an unfinished line may precede it. stdout carries only the workers' output.
struct CiFold {
  std::string begins;
  std::string ends;
};
[[nodiscard]] CiFold ci_fold(CiService service, std::string_view program);

/// `text`, which may contain workers' output, with GitHub's workflow commands disabled.
[[nodiscard]] std::string escape_runner_commands(std::string text);

/// "::error file=…,line=…,title=…::…" with a newline: the failed rank and its reason, at the innermost frame of its
/// Python traceback that lies in `workspace` and in no installed package. Empty after a success or a signal.
[[nodiscard]] std::string github_annotation(const std::string& json, const std::string& workspace);
/// A table in Markdown, at most some KiB.
[[nodiscard]] std::string github_summary(const std::string& json);
/// Writes the annotation to stderr and appends the summary to $GITHUB_STEP_SUMMARY; warns if that fails. Blocks on the
/// file.
void report_to_github(const std::string& json);

/// --report=x.xml: a JUnit test suite with a case per rank of the last attempt, and a case "job" if the job failed
/// without a failed rank, or ddrun read the stacks, which are its <system-err>.
[[nodiscard]] std::string junit_report(const std::string& json);

}  // namespace ddrun::agent
