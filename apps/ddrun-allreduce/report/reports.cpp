#include "report/reports.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ddrun/base/text.hpp"
#include "report/comparison.hpp"
#include "report/csv_report.hpp"
#include "report/gnuplot.hpp"
#include "report/json_reader.hpp"
#include "report/json_report.hpp"
#include "report/table.hpp"
#include "say.hpp"
#include "status.hpp"

namespace ddrun::allreduce {

namespace {

Result<void> open_into(OutputFile& file, const std::string& option, const std::string& path) {
  if (path.empty()) return {};
  auto opened = OutputFile::open(option, path);
  if (!opened) return tl::unexpected(opened.error());
  file = std::move(*opened);
  return {};
}

}  // namespace

Result<Reports> Reports::open(const ReportOptions& options) {
  Reports reports;
  reports.options_ = options;
  Result<void> good;
  const auto also = [&good](auto&& next) {
    if (good) good = next();
  };
  if (!options.compare_file.empty()) {
    auto old = read_report("--compare", options.compare_file);
    if (!old) return tl::unexpected(old.error());
    reports.old_ = std::move(*old);
  }
  for (const std::string& path : options.with) {
    auto other = read_report("--with", path);
    if (!other) return tl::unexpected(other.error());
    reports.with_.push_back(std::move(*other));
  }
  if (!options.plot_file.empty()) also(check_gnuplot);
  also([&] { return open_into(reports.json_, "--output_file", options.json_file); });
  also([&] { return open_into(reports.csv_, "--csv", options.csv_file); });
  also([&] { return open_into(reports.plot_, "--plot", options.plot_file); });
  if (!good) return tl::unexpected(good.error());
  if ((options.json_file == "-" || options.csv_file == "-") && dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
    return fail_errno(Errc::unavailable, "cannot move the table to standard error", errno);
  }
  return reports;
}

Result<void> Reports::check(const Report& planned) const {
  if (auto good = check_judgeable(options_.thresholds, planned); !good) return good;
  if (old_) {
    if (auto good = check_comparable(*old_, planned); !good) return good;
  }
  if (plot_) {
    std::vector<Report> all(with_);
    all.emplace_back().summary.rows = planned.summary.rows;
    if (const auto curves = curves_of(all); !curves) return tl::unexpected(curves.error());
  }
  return {};
}

Verdict Reports::judge(const Report& now) const {
  Verdict verdict;
  if (!now.summary.error.empty()) return verdict;
  verdict.shortfalls = shortfalls(options_.thresholds, now.summary);
  if (!old_) return verdict;
  Comparison comparison = compare(*old_, now, options_.tolerance);
  verdict.notes.push_back(concat("Compared with ", old_->name, ": ", comparison.slower, " of ", comparison.compared,
                                 " measurements are slower than allowed"));
  std::move(comparison.notes.begin(), comparison.notes.end(), std::back_inserter(verdict.notes));
  std::move(comparison.shortfalls.begin(), comparison.shortfalls.end(), std::back_inserter(verdict.shortfalls));
  return verdict;
}

Result<void> Reports::write(const Report& now, const Verdict& verdict) {
  Result<void> result;
  const auto also = [&result](Result<void> done) {
    if (result) result = std::move(done);
  };
  if (json_) also(json_.write(json_of(now, verdict.shortfalls)));
  if (csv_) also(csv_.write(csv_of(now)));
  if (plot_ && now.summary.error.empty()) {
    std::vector<Report> all{now};
    all.insert(all.end(), with_.begin(), with_.end());
    also(draw(all));
  }
  return result;
}

Result<void> Reports::draw(const std::vector<Report>& reports) {
  const auto curves = curves_of(reports);
  if (!curves) return tl::unexpected(curves.error());
  if (curves->curves.empty()) return fail(Errc::unavailable, "--plot: nothing was measured that could be drawn");
  const auto format = picture_format(options_.plot_file);
  if (!format) return tl::unexpected(format.error());
  const auto picture = run_gnuplot(plot_script(*curves, *format), Clock::now() + kDrawingTime);
  if (!picture) return tl::unexpected(picture.error());
  return plot_.write(*picture);
}

Result<int> report_from_files(const ReportOptions& options) {
  std::vector<Report> runs;
  for (const std::string& path : options.from) {
    auto run = read_report("--from", path);
    if (!run) return tl::unexpected(run.error());
    runs.push_back(std::move(*run));
  }
  // The first is what a run would have been, the others are beside it.
  ReportOptions rest = options;
  rest.with.insert(rest.with.begin(), options.from.begin() + 1, options.from.end());
  auto reports = Reports::open(rest);
  if (!reports) return tl::unexpected(reports.error());
  const Report& run = runs.front();
  if (auto good = reports->check(run); !good) return tl::unexpected(good.error());
  const Verdict verdict = reports->judge(run);
  print(lines_of(verdict));
  if (auto written = reports->write(run, verdict); !written) return tl::unexpected(written.error());
  if (!run.summary.error.empty()) return fail(Errc::unavailable, concat(run.name, ": ", run.summary.error));
  say_shortfall(verdict);
  return status_of(run.summary, verdict);
}

int status_of(const Summary& summary, const Verdict& verdict) {
  if (summary.wrong != 0) return kFailed;
  return verdict.shortfalls.empty() ? kRight : kTooSlow;
}

std::string lines_of(const Verdict& verdict) {
  std::string text;
  for (const std::string& note : verdict.notes) text += concat("# ", note, '\n');
  for (const Shortfall& shortfall : verdict.shortfalls) text += concat("# Fell short: ", shortfall.words, '\n');
  return text;
}

void say_shortfall(const Verdict& verdict) {
  if (verdict.shortfalls.empty()) return;
  const auto worst =
      std::min_element(verdict.shortfalls.begin(), verdict.shortfalls.end(),
                       [](const Shortfall& one, const Shortfall& other) { return one.ratio < other.ratio; });
  const std::size_t others = verdict.shortfalls.size() - 1;
  say_error(
      concat("too slow: ", worst->words, others == 0 ? std::string() : concat(" (", others, " more fell short)")));
}

}  // namespace ddrun::allreduce
