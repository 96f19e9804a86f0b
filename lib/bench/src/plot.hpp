#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "results.hpp"

namespace ddrun::bench {

struct Point {
  std::uint64_t bytes = 0;
  double bandwidth = 0;  ///< GB/s
  double microseconds = 0;
};

/// One case of one run, in one placement.
struct Curve {
  std::size_t color = 0;
  bool in_place = false;
  std::vector<Point> points;  ///< by size, one at least
};

struct Curves {
  std::vector<std::string> title;   ///< what all curves have in common, in lines
  std::vector<std::string> colors;  ///< one per run and case: what tells it from the others
  bool bus = true;                  ///< bandwidth is busbw; otherwise, where a run is of one rank, algbw
  std::vector<Curve> curves;
};

/// How many runs and cases can be told apart in one picture.
inline constexpr std::size_t max_colors = 8;

/// `invalid_argument` if there are more colors than can be told apart, or no rows: barriers have no size. What was not
/// measured gives no curve, so that rows of a run that is to come tell whether it can be drawn.
[[nodiscard]] Result<Curves> curves_of(const Report& report);

enum class PictureFormat { svg, png };

/// By the end of its name, ".svg" or ".png"; `invalid_argument` for any other.
[[nodiscard]] Result<PictureFormat> picture_format(const std::string& path);

/// What gnuplot is to do to write the picture to its standard output: bandwidth and time over size, one above the
/// other. No curve may be without points; names in it are data to gnuplot, whatever they are.
[[nodiscard]] std::string plot_script(const Curves& curves, PictureFormat format);

/// `invalid_argument` if there is no gnuplot in PATH: which package has it.
[[nodiscard]] Result<void> check_gnuplot();

/// Blocks while gnuplot runs the script, and returns what it wrote to its standard output. No file is made, and
/// no settings of the user's are read. `unavailable` if it fails, with its own words; `timeout` ends it.
[[nodiscard]] Result<std::string> run_gnuplot(const std::string& script, Deadline deadline);

}  // namespace ddrun::bench
