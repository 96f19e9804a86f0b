#pragma once

#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/bench/options.hpp"
#include "results.hpp"

namespace ddrun::bench {

/// A file that is written once, at the end. It is opened before the run, so that an invalid path is reported before the
/// measurement, and keeps its old content until written. "-" and "/dev/stdout" are standard output.
class OutputFile {
 public:
  /// `option` is the name in error messages; an empty path: no file. `invalid_argument` if it cannot be opened.
  [[nodiscard]] Result<void> open(std::string option, std::string path);

  explicit operator bool() const { return !path_.empty(); }
  [[nodiscard]] bool is_standard_output() const { return path_ == "-" || path_ == "/dev/stdout"; }
  /// Replaces the content. `unavailable` on a write error, such as a full disk.
  [[nodiscard]] Result<void> write(const std::string& text);

 private:
  std::string option_;
  std::string path_;
  std::ofstream file_;
};

/// The output files of rank 0, and the thresholds.
class Reports {
 public:
  /// Opens the requested files and checks for gnuplot, before any measurement (`invalid_argument`).
  [[nodiscard]] static Result<Reports> open(const ReportOptions& options);

  /// `invalid_argument` if the thresholds or the plot do not fit the planned run. Uses the number of ranks, case,
  /// `bytes` and `count` of the rows, and whether pairs are measured.
  [[nodiscard]] Result<void> check(const Report& planned) const;

  /// Descriptor of the table: standard error if the JSON report uses standard output.
  [[nodiscard]] int table_stream() const { return json_.is_standard_output() ? STDERR_FILENO : STDOUT_FILENO; }

  /// Empty for a run that ended early.
  [[nodiscard]] std::vector<Violation> violations_of(const Report& now) const;

  /// Writes all files; for a run that ended early only JSON, with the rows so far. Blocks while gnuplot runs, at most
  /// drawing_time. If one file cannot be written (`unavailable`), the other still is.
  [[nodiscard]] Result<void> write(const Report& now, const std::vector<Violation>& violations);

  static constexpr Milliseconds drawing_time{60'000};

 private:
  ReportOptions options_;
  OutputFile json_;
  OutputFile plot_;
};

[[nodiscard]] std::string lines_of(const std::vector<Violation>& violations);

/// One line on stderr: the worst violation and the number of others. Nothing if there is none.
void print_worst_violation(const std::vector<Violation>& violations);

// The table in the format of nccl-tests, as whole lines.
[[nodiscard]] std::string header(const Setting& setting, const Options& options);
[[nodiscard]] std::string heading(collectives::Collective collective);
/// Values that were not measured are N/A; a bandwidth is 0 where no data moves, as with nccl-tests.
[[nodiscard]] std::string line(const Row& row);
/// Notes below the rows of a case: each reason for N/A once. `no_size`: no size holds an element per rank.
[[nodiscard]] std::string remarks(const Case& spec, const std::vector<Row>& rows, bool no_size);
[[nodiscard]] std::string footer(const Summary& summary);

/// The matrices (of at most 64 nodes) and the worst pairs.
[[nodiscard]] std::string table_of(const Pairs& pairs);

/// Writes whole lines at once, so that launchers that prefix lines show each immediately. On a write error (closed,
/// full disk) prints an error and exits, as the results would be lost.
void print(int stream, const std::string& lines);

/// The report as a JSON object, in UTF-8 (docs/allreduce.md).
[[nodiscard]] std::string json_of(const Report& report, const std::vector<Violation>& violations);

// --min-busbw and --max-latency.

/// "10", "10@64M", "10@64M,2.5@1M": GB/s, optionally at a size.
[[nodiscard]] Result<std::vector<Threshold>> parse_min_busbw(const std::string& text);
/// "20us", "1.5ms@1M,15us": the unit (ns, us, ms, s) is required.
[[nodiscard]] Result<std::vector<Threshold>> parse_max_latency(const std::string& text);

/// `invalid_argument` if a threshold cannot be checked: a size that is not measured, any size with pairs, or bandwidth
/// with one rank. Uses the same parts of `planned` as Reports::check().
[[nodiscard]] Result<void> check_thresholds(const Thresholds& thresholds, const Report& planned);

/// In the order of the rows. A case that the back end does not support is a violation. For pairs one per threshold,
/// naming the worst pair and node.
[[nodiscard]] std::vector<Violation> threshold_failures(const Thresholds& thresholds, const Summary& summary);

// --plot.

/// gnuplot's terminal for a file name ending in ".svg" or ".png"; `invalid_argument` for others.
[[nodiscard]] Result<std::string> terminal_of(const std::string& path);

/// `invalid_argument` if gnuplot is not in PATH; names the package.
[[nodiscard]] Result<void> check_gnuplot();

/// `invalid_argument` if no planned row has a size.
[[nodiscard]] Result<void> check_drawable(const Report& planned);

/// A gnuplot script that plots bandwidth (busbw; algbw for one rank) and time over size to standard output. Names are
/// quoted, so that gnuplot does not interpret them.
[[nodiscard]] std::string plot_script(const Report& report, const std::string& terminal);

/// Runs gnuplot and returns the picture. Blocks. Ignores the user's settings and makes no file. `unavailable` if
/// gnuplot fails (with its last line) or nothing was measured; `timeout` after the deadline.
[[nodiscard]] Result<std::string> draw(const Report& report, const std::string& terminal, Deadline deadline);

}  // namespace ddrun::bench
