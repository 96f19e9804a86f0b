#include "report/plot.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "ddrun/base/text.hpp"
#include "report/printable.hpp"
#include "report/units.hpp"

namespace ddrun::allreduce {

namespace {

// Okabe and Ito's colors, which people with any kind of sight can tell apart, less their yellow.
constexpr std::array<const char*, kMostColors> kColors{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                       "#e69f00", "#56b4e9", "#000000", "#888888"};

constexpr int kWidth = 1000;
constexpr int kTitle = 70;   // pixels
constexpr int kPanel = 320;  // of one of the two plots
constexpr int kBelow = 66;   // tics and the axis' name
constexpr int kLine = 22;    // of the legend
constexpr std::size_t kMostCharacters = 110;

/// As gnuplot needs it: between single quotes nothing is special but a single quote.
std::string for_gnuplot(std::string_view text) {
  std::string quoted = "'";
  for (const char c : printable(text, kMostCharacters)) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

/// Powers of two with their names, a dozen at most, and those that were measured if some were not.
std::string size_tics(const std::set<std::uint64_t>& sizes) {
  const int first = std::bit_width(*sizes.begin()) - 1;
  const int last = std::bit_width(*sizes.rbegin());
  int step = 1;
  while ((last - first) / step > 12) ++step;
  int best = 0;
  std::ptrdiff_t most = -1;
  for (int offset = 0; offset < step; ++offset) {
    std::ptrdiff_t hits = 0;
    for (int power = offset; power <= last; power += step) hits += sizes.contains(std::uint64_t{1} << power) ? 1 : 0;
    if (hits > most) best = offset;
    most = std::max(most, hits);
  }
  std::vector<std::string> tics;
  for (int power = best; power <= last; power += step) {
    const std::uint64_t bytes = std::uint64_t{1} << power;
    if (power >= first) tics.push_back(concat(for_gnuplot(size_in_words(bytes)), ' ', bytes));
  }
  return concat("set xtics (", join(tics, ", "), ")\n");
}

/// Powers of ten with their names.
std::string time_tics(double shortest, double longest) {
  std::vector<std::string> tics;
  for (int power = static_cast<int>(std::floor(std::log10(shortest))); power <= std::ceil(std::log10(longest));
       ++power) {
    const double value = std::pow(10.0, power);
    tics.push_back(concat(for_gnuplot(time_in_words(value)), ' ', shortest_number(value)));
  }
  return concat("set ytics (", join(tics, ", "), ")\n");
}

struct Bounds {
  std::set<std::uint64_t> sizes;
  double shortest = 0;
  double longest = 0;
};

Bounds bounds_of(const Curves& curves) {
  Bounds bounds;
  for (const Curve& curve : curves.curves) {
    for (const Point& point : curve.points) {
      bounds.shortest = bounds.sizes.empty() ? point.microseconds : std::min(bounds.shortest, point.microseconds);
      bounds.longest = std::max(bounds.longest, point.microseconds);
      bounds.sizes.insert(point.bytes);
    }
  }
  return bounds;
}

std::string data_of(const Curves& curves) {
  std::string text;
  for (std::size_t i = 0; i < curves.curves.size(); ++i) {
    text += concat("$curve", i, " << END\n");
    for (const Point& point : curves.curves[i].points) {
      text +=
          concat(point.bytes, ' ', shortest_number(point.bandwidth), ' ', shortest_number(point.microseconds), '\n');
    }
    text += "END\n";
  }
  return text;
}

std::string style(const std::string& color, bool in_place) {
  return concat("with linespoints linewidth 2 pointsize 0.8 linecolor rgb '", color,
                in_place ? "' dashtype 2 pointtype 6" : "' pointtype 7");
}

/// Curves without points, for the legend alone: what the colors mean, and what the kinds of line do.
std::vector<std::string> legend_of(const Curves& curves) {
  std::vector<std::string> parts;
  const bool several = curves.colors.size() > 1;
  for (std::size_t color = 0; several && color < curves.colors.size(); ++color) {
    parts.push_back(concat("NaN with lines linewidth 4 linecolor rgb '", kColors[color], "' title ",
                           for_gnuplot(curves.colors[color])));
  }
  for (const bool in_place : {false, true}) {
    parts.push_back(concat("NaN ", style(several ? "#000000" : kColors[0], in_place), " title ",
                           in_place ? "'in place'" : "'out of place'"));
  }
  return parts;
}

/// One of the two plots: column 2 of the data is the bandwidth, 3 the time.
std::string panel(const Curves& curves, int column, std::vector<std::string> parts = {}) {
  for (std::size_t i = 0; i < curves.curves.size(); ++i) {
    const Curve& curve = curves.curves[i];
    parts.push_back(
        concat("$curve", i, " using 1:", column, ' ', style(kColors[curve.color], curve.in_place), " notitle"));
  }
  return concat("plot ", join(parts, ", \\\n     "), '\n');
}

}  // namespace

Result<PictureFormat> picture_format(const std::string& path) {
  if (path.ends_with(".svg")) return PictureFormat::svg;
  if (path.ends_with(".png")) return PictureFormat::png;
  return fail(Errc::invalid_argument, concat("the name must end in .svg or .png: ", path));
}

std::string plot_script(const Curves& curves, PictureFormat format) {
  const Bounds bounds = bounds_of(curves);
  const std::vector<std::string> legend = legend_of(curves);
  const int below = static_cast<int>(legend.size()) * kLine;
  const int height = kTitle + 2 * kPanel + 2 * kBelow + below;
  const auto screen = [&](int pixels) {
    return concat("screen ", shortest_number(static_cast<double>(pixels) / height));
  };
  const auto margins = [&](int bottom) {
    return concat("set bmargin at ", screen(bottom), "\nset tmargin at ", screen(bottom + kPanel), '\n');
  };
  const bool svg = format == PictureFormat::svg;
  std::string script =
      concat("set encoding utf8\nset terminal ", svg ? "svg dynamic" : "pngcairo", " noenhanced size ", kWidth, ',',
             height, " background rgb 'white' font 'Sans,", svg ? 14 : 11, "'\n", data_of(curves), "set multiplot\n");
  for (std::size_t i = 0; i < curves.title.size(); ++i) {
    script += concat("set label ", i + 1, ' ', for_gnuplot(curves.title[i]), " at screen 0.5, ",
                     screen(height - kLine * (1 + static_cast<int>(i))), " center\n");
  }
  script += "set lmargin at screen 0.1\nset rmargin at screen 0.97\nset border 3\nset tics nomirror\n";
  script += "set grid xtics ytics linetype 1 linewidth 1 linecolor rgb '#d8d8d8'\n";
  script += concat("set logscale x 2\nset xrange [", shortest_number(static_cast<double>(*bounds.sizes.begin()) / 1.2),
                   ':', shortest_number(static_cast<double>(*bounds.sizes.rbegin()) * 1.2), "]\nset xlabel 'size'\n",
                   size_tics(bounds.sizes));
  script += concat(margins(below + kBelow + kPanel + kBelow), "set nokey\nset yrange [0:*]\nset ylabel '",
                   curves.bus ? "bus" : "algorithm", " bandwidth (GB/s)'\n", panel(curves, 2));
  for (std::size_t i = 0; i < curves.title.size(); ++i) script += concat("unset label ", i + 1, '\n');
  script += concat(margins(below + kBelow), "set ylabel 'time per call'\nset logscale y\nset yrange [*:*]\n",
                   time_tics(bounds.shortest, bounds.longest));
  script += concat("set key at screen 0.1, ", screen(below), " left top vertical maxrows ", legend.size(),
                   " Left reverse\n", panel(curves, 3, legend));
  return script + "unset multiplot\n";
}

}  // namespace ddrun::allreduce
