#include "reports.hpp"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/helper/run.hpp"

namespace ddrun::bench {

namespace {

/// Within single quotes gnuplot treats only a single quote specially. Control characters and non-ASCII bytes become
/// '?'.
std::string for_gnuplot(std::string_view text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? "''" : std::string(1, c >= ' ' && c <= '~' ? c : '?');
  return result + "'";
}

struct Curve {
  std::string title;
  std::string points;  ///< lines of bytes, GB/s and microseconds
};

std::vector<Curve> curves_of(const Report& report) {
  std::vector<Curve> curves;
  for (const Placement& placement : placements) {
    for (const Row& row : report.summary.rows) {
      const Measurement& one = row.*placement.of;
      if (row.bytes == 0 || !measured(one)) continue;
      const std::string title = concat(describe(row.spec), ", ", placement.name);
      auto curve = std::find_if(curves.begin(), curves.end(), [&](const Curve& known) { return known.title == title; });
      if (curve == curves.end()) curve = curves.insert(curve, {title, {}});
      const double bandwidth = report.setting.size > 1 ? one.busbw : one.algbw;
      curve->points += concat(row.bytes, ' ', std::to_string(bandwidth), ' ', std::to_string(one.microseconds), '\n');
    }
  }
  return curves;
}

}  // namespace

Result<std::string> terminal_of(const std::string& path) {
  if (path.ends_with(".svg")) return std::string("svg dynamic");
  if (path.ends_with(".png")) return std::string("pngcairo");
  return fail(Errc::invalid_argument, concat("the name must end in .svg or .png: ", path));
}

Result<void> check_gnuplot() {
  const auto found = helper::run({"gnuplot", "--version"}, {std::chrono::seconds(10)});
  if (found || found.error().code != Errc::not_found) return {};
  return fail(Errc::invalid_argument,
              "--plot: gnuplot, which draws, is not in PATH: install it "
              "(Debian and Ubuntu: apt-get install gnuplot-nox)");
}

Result<void> check_drawable(const Report& planned) {
  const auto& rows = planned.summary.rows;
  if (std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.bytes != 0; })) return {};
  return fail(Errc::invalid_argument, "--plot: there is nothing to draw; a barrier has no sizes");
}

std::string plot_script(const Report& report, const std::string& terminal) {
  const std::vector<Curve> curves = curves_of(report);
  std::string script = concat("set terminal ", terminal, " noenhanced size 1000,", 800 + 20 * curves.size(),
                              " background rgb 'white'\n");
  for (std::size_t i = 0; i < curves.size(); ++i) script += concat("$c", i, " << END\n", curves[i].points, "END\n");
  const auto panel = [&](int column) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < curves.size(); ++i) {
      parts.push_back(concat("$c", i, " using 1:", column, " with linespoints title ", for_gnuplot(curves[i].title)));
    }
    return concat("plot ", join(parts, ", "), '\n');
  };
  const Setting& setting = report.setting;
  script +=
      concat("set multiplot layout 2,1 title ",
             for_gnuplot(concat("ddrun-allreduce, ", setting.size, setting.size == 1 ? " rank" : " ranks", " from ",
                                setting.members.empty() ? "" : setting.members[0].host, ", backend ", setting.backend)),
             "\nset grid\nset key below\nset logscale x 2\nset format x '%.0b %BB'\nset xlabel 'size'\n");
  script += concat("set yrange [0:*]\nset ylabel '", setting.size > 1 ? "bus" : "algorithm", " bandwidth (GB/s)'\n",
                   panel(2));
  script += concat("set yrange [*:*]\nset logscale y\nset ylabel 'time per call (us)'\n", panel(3));
  return script + "unset multiplot\n";
}

Result<std::string> draw(const Report& report, const std::string& terminal, Deadline deadline) {
  if (curves_of(report).empty()) return fail(Errc::unavailable, "--plot: nothing was measured that could be drawn");
  // -d: no ~/.gnuplot.
  auto drawn = helper::run({"gnuplot", "-d", "-"}, {deadline - Clock::now(), 64 << 20}, plot_script(report, terminal));
  if (!drawn) {
    const Errc code = drawn.error().code == Errc::timeout ? Errc::timeout : Errc::unavailable;
    return fail(code, concat("--plot: ", drawn.error().message));
  }
  if (drawn->succeeded() && !drawn->out.empty()) return std::move(drawn->out);
  // gnuplot prints the script line and position first; the message is the last line.
  const std::string last = split(std::string(trim(drawn->err)), '\n').back();
  return fail(Errc::unavailable, concat("--plot: gnuplot failed", last.empty() ? "" : ": ", last));
}

}  // namespace ddrun::bench
