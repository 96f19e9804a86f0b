#include "reports.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/bench/run.hpp"
#include "judgement.hpp"

namespace ddrun::bench {

namespace {

/// This process' own stream that is the same file, such as for /dev/stdout; -1: none is.
int own_stream(const struct stat& file) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat own {};
    if (fstat(stream, &own) == 0 && own.st_dev == file.st_dev && own.st_ino == file.st_ino) return stream;
  }
  return -1;
}

}  // namespace

Result<OutputFile> OutputFile::open(std::string option, std::string path) {
  OutputFile file;
  const auto refused = [&] {
    return fail_errno(Errc::invalid_argument, concat(option, ": cannot write ", path), errno);
  };
  const bool standard = path == "-";
  file.fd_ = UniqueFd(standard ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                               : ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666));
  struct stat info {};
  if (!file.fd_ || fstat(file.fd_.get(), &info) != 0) return refused();
  if (const int stream = own_stream(info); !standard && S_ISREG(info.st_mode) && stream >= 0) {
    // Its own position in the file would be the beginning, where the table is.
    file.fd_ = UniqueFd(fcntl(stream, F_DUPFD_CLOEXEC, 3));
    if (!file.fd_) return refused();
  } else {
    file.replaces_ = !standard && S_ISREG(info.st_mode);
  }
  file.option_ = std::move(option);
  file.path_ = standard ? "standard output" : std::move(path);
  return file;
}

Result<void> OutputFile::write(std::string_view text) {
  if (!write_all(fd_.get(), text.data(), text.size()) ||
      (replaces_ && ftruncate(fd_.get(), static_cast<off_t>(text.size())) != 0)) {
    return fail_errno(Errc::unavailable, concat(option_, ": cannot write ", path_), errno);
  }
  return {};
}

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
  const auto picture = run_gnuplot(plot_script(*curves, *format), Clock::now() + drawing_time);
  if (!picture) return tl::unexpected(picture.error());
  return plot_.write(*picture);
}

int status_of(const Summary& summary, const Verdict& verdict) {
  if (summary.wrong != 0) return exit_failed;
  return verdict.shortfalls.empty() ? exit_right : exit_too_slow;
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

}  // namespace ddrun::bench
