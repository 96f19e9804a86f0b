#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/report.hpp"

namespace ddrun::allreduce {

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
inline constexpr std::size_t kMostColors = 8;

/// `invalid_argument` if there are more colors than can be told apart, or no rows: barriers have no size. What was not
/// measured gives no curve, so that rows of a run that is to come tell whether it can be drawn.
[[nodiscard]] Result<Curves> curves_of(const std::vector<Report>& reports);

}  // namespace ddrun::allreduce
