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

/// A file that is written once, at the end. It is opened before the run, so that a wrong path does not cost a
/// measurement, and its former content stays until then. "-" and "/dev/stdout" are standard output.
class OutputFile {
 public:
  /// `option` is for the words of errors; no path: no file. `invalid_argument` if it cannot be written.
  [[nodiscard]] Result<void> open(std::string option, std::string path);

  explicit operator bool() const { return !path_.empty(); }
  [[nodiscard]] bool is_standard_output() const { return path_ == "-" || path_ == "/dev/stdout"; }
  /// Replaces what was in it. `unavailable`, for example, on a full disk.
  [[nodiscard]] Result<void> write(const std::string& text);

 private:
  std::string option_;
  std::string path_;
  std::ofstream file_;
};

/// The files that rank 0 writes, and its judgement.
class Reports {
 public:
  /// Opens whatever was asked for, and looks for gnuplot: what is wrong costs no measurement (`invalid_argument`).
  [[nodiscard]] static Result<Reports> open(const ReportOptions& options);

  /// Whether such a run can be judged and drawn. Of the plan, the number of ranks, the rows' `what`, `bytes` and
  /// `count`, and whether there are pairs count.
  [[nodiscard]] Result<void> check(const Report& planned) const;

  /// Where the table goes: standard error if the report goes to standard output.
  [[nodiscard]] int table_stream() const { return json_.is_standard_output() ? STDERR_FILENO : STDOUT_FILENO; }

  /// Nothing falls short in a run that ended early: it is not judged.
  [[nodiscard]] std::vector<Violation> violations_of(const Report& now) const;

  /// All files; a run that ended early gets none but JSON, with the rows it has. Blocks while gnuplot draws,
  /// drawing_time at most. If one cannot be written (`unavailable`), the other still is.
  [[nodiscard]] Result<void> write(const Report& now, const std::vector<Violation>& violations);

  static constexpr Milliseconds drawing_time{60'000};

 private:
  ReportOptions options_;
  OutputFile json_;
  OutputFile plot_;
};

/// For the end of the table.
[[nodiscard]] std::string lines_of(const std::vector<Violation>& violations);

/// On stderr, in one line: the worst of them, and how many there are. None: nothing.
void print_worst_violation(const std::vector<Violation>& violations);

// The table, with the columns of nccl-tests, as whole lines.
[[nodiscard]] std::string header(const Setting& setting, const Options& options);
/// Above the rows of one collective.
[[nodiscard]] std::string heading(collectives::Collective collective);
/// What could not be run, or means nothing, is N/A.
[[nodiscard]] std::string line(const Row& row);
/// Below the rows of a case: why something of it was not run, once for each reason; empty: all was. `no_size`: that
/// no size was as large as an element for each rank.
[[nodiscard]] std::string remarks(const Case& bench_case, const std::vector<Row>& rows, bool no_size);
[[nodiscard]] std::string footer(const Summary& summary);

/// The matrices (of 64 nodes at most) and the worst.
[[nodiscard]] std::string table_of(const Pairs& pairs);

/// To a descriptor at once and in whole lines, so that a launcher that labels lines shows each as soon as it is known.
/// If it does not take them (closed, or a full disk), says so and ends the program: no user would see what is measured.
void print(int stream, const std::string& lines);

/// Everything as one JSON object, in UTF-8 (docs/allreduce.md).
[[nodiscard]] std::string json_of(const Report& report, const std::vector<Violation>& violations);

// --min-busbw and --max-latency.

/// "10", "10@64M", "10@64M,2.5@1M": GB/s, and of which size.
[[nodiscard]] Result<std::vector<Threshold>> parse_min_busbw(const std::string& text);
/// "20us", "1.5ms@1M,15us": the unit is needed (ns, us, ms, s).
[[nodiscard]] Result<std::vector<Threshold>> parse_max_latency(const std::string& text);

/// Fails with `invalid_argument` if one of them could not be judged: a size that is not among the rows that are
/// going to be measured, or any size of pairs, or a bandwidth of a group of one. Of `planned`, the number of ranks, the
/// rows' `what`, `bytes` and `count`, and whether there are pairs count.
[[nodiscard]] Result<void> check_thresholds(const Thresholds& thresholds, const Report& planned);

/// In the rows' order. A case that the back end lacks falls short. Of pairs one for each threshold, with the worst pair
/// and the worst node.
[[nodiscard]] std::vector<Violation> threshold_failures(const Thresholds& thresholds, const Summary& summary);

// --plot.

/// The terminal of gnuplot for a file name that ends in ".svg" or ".png"; `invalid_argument` for any other.
[[nodiscard]] Result<std::string> terminal_of(const std::string& path);

/// `invalid_argument` if there is no gnuplot in PATH: which package has it.
[[nodiscard]] Result<void> check_gnuplot();

/// `invalid_argument` if no planned row has a size.
[[nodiscard]] Result<void> check_drawable(const Report& planned);

/// For gnuplot: bandwidth (busbw; of one rank algbw) and time over size, one above the other, to standard output.
/// Names are quoted: gnuplot executes nothing of them.
[[nodiscard]] std::string plot_script(const Report& report, const std::string& terminal);

/// Runs gnuplot and returns the picture; blocks. Reads no settings of the user's, makes no file. `unavailable` if
/// gnuplot fails, with its last line, or nothing was measured; `timeout` ends it.
[[nodiscard]] Result<std::string> draw(const Report& report, const std::string& terminal, Deadline deadline);

}  // namespace ddrun::bench
