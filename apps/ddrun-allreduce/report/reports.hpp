#pragma once

#include <optional>
#include <string>
#include <vector>

#include "options/report_options.hpp"
#include "report/output_file.hpp"
#include "report/plot.hpp"
#include "report/report.hpp"

namespace ddrun::allreduce {

struct Verdict {
  std::vector<Shortfall> shortfalls;
  std::vector<std::string> notes;  ///< for people, one line each
};

/// The files that rank 0 reads and writes, and its judgement.
class Reports {
 public:
  /// Opens and reads whatever was asked for, and looks for gnuplot: what is wrong costs no measurement
  /// (`invalid_argument`). If a report goes to standard output, what is printed there from now on goes to standard
  /// error.
  [[nodiscard]] static Result<Reports> open(const ReportOptions& options);

  /// Whether such a run can be judged and drawn. Of the plan, the number of ranks, the buffers, the rows' `what`,
  /// `bytes` and `count`, and the pairs' bytes count.
  [[nodiscard]] Result<void> check(const Report& planned) const;

  /// Nothing falls short in a run that ended early: it is not judged.
  [[nodiscard]] Verdict judge(const Report& now) const;

  /// All files; a run that ended early gets none but JSON and CSV, with the rows it has. Blocks while gnuplot draws,
  /// kDrawingTime at most. If one cannot be written (`unavailable`), the others still are.
  [[nodiscard]] Result<void> write(const Report& now, const Verdict& verdict);

  static constexpr Milliseconds kDrawingTime{60'000};

 private:
  [[nodiscard]] Result<void> draw(const std::vector<Report>& reports);

  ReportOptions options_;
  OutputFile json_;
  OutputFile csv_;
  OutputFile plot_;
  std::optional<Report> old_;
  std::vector<Report> with_;
};

/// What --from asks for, without a run. Returns the exit status; failures are already worded.
[[nodiscard]] Result<int> report_from_files(const ReportOptions& options);

/// 0, or 1 if an element was wrong, else 3 if something fell short.
[[nodiscard]] int status_of(const Summary& summary, const Verdict& verdict);

/// For the end of the table.
[[nodiscard]] std::string lines_of(const Verdict& verdict);

/// On stderr, in one line: the worst shortfall, and how many there are.
void say_shortfall(const Verdict& verdict);

}  // namespace ddrun::allreduce
