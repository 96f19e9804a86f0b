#include "plot.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/helper/run.hpp"
#include "results.hpp"

namespace ddrun::bench {

namespace {

using collectives::Collective;

/// One case, with its rows.
struct Series {
  std::vector<const Row*> rows;
  /// What it is, in words; those that are the same for all go to the title, the others to the labels.
  std::array<std::string, 4> traits;
};

std::string machines_of(const Setting& setting) {
  std::vector<std::string> hosts;
  for (const auto& member : setting.members) {
    if (std::find(hosts.begin(), hosts.end(), member.host) == hosts.end()) hosts.push_back(member.host);
  }
  if (hosts.empty()) return "";
  return concat(hosts.size() > 1 ? "machines " : "machine ", hosts[0],
                hosts.size() > 1 ? concat(" and ", hosts.size() - 1, " more") : std::string());
}

std::vector<Series> series_of(const Report& report) {
  std::vector<Series> all;
  for (const Row& row : report.summary.rows) {
    if (row.bytes == 0) continue;
    auto known = std::find_if(all.begin(), all.end(),
                              [&](const Series& one) { return same_case(one.rows.front()->what, row.what); });
    if (known == all.end()) {
      const int ranks = report.setting.size;
      all.push_back({{},
                     {in_words(row.what), concat(ranks, ranks == 1 ? " rank" : " ranks"), machines_of(report.setting),
                      concat("backend ", report.setting.backend)}});
      known = std::prev(all.end());
    }
    known->rows.push_back(&row);
  }
  for (Series& one : all) {
    std::sort(one.rows.begin(), one.rows.end(), [](const Row* a, const Row* b) { return a->bytes < b->bytes; });
  }
  return all;
}

std::string words_of(const Series& one, const std::vector<std::size_t>& traits) {
  std::vector<std::string> words;
  for (const std::size_t trait : traits) {
    if (!one.traits[trait].empty()) words.push_back(one.traits[trait]);
  }
  return join(words, ", ");
}

}  // namespace

Result<Curves> curves_of(const Report& report) {
  const std::vector<Series> all = series_of(report);
  if (all.empty()) return fail(Errc::invalid_argument, "--plot: there is nothing to draw; a barrier has no sizes");
  if (all.size() > max_colors) {
    return fail(Errc::invalid_argument, concat("--plot: ", all.size(), " curves cannot be told apart, at most ",
                                               max_colors, " can: choose fewer of --collective, --datatype or --op"));
  }
  Curves curves;
  curves.bus = report.setting.size > 1;
  std::vector<std::size_t> common;
  std::vector<std::size_t> different;
  for (std::size_t trait = 0; trait < all.front().traits.size(); ++trait) {
    const bool same = std::all_of(all.begin(), all.end(),
                                  [&](const Series& one) { return one.traits[trait] == all.front().traits[trait]; });
    (same ? common : different).push_back(trait);
  }
  curves.title = {"ddrun-allreduce", words_of(all.front(), common)};
  for (const Series& one : all) {
    for (const Placement& placement : placements) {
      Curve curve;
      curve.color = curves.colors.size();
      curve.in_place = placement.of == &Row::in_place;
      for (const Row* row : one.rows) {
        const Measurement& taken = row->*placement.of;
        if (!measured(taken)) continue;
        curve.points.push_back({row->bytes, curves.bus ? taken.busbw : taken.algbw, taken.microseconds});
      }
      if (!curve.points.empty()) curves.curves.push_back(std::move(curve));
    }
    curves.colors.push_back(words_of(one, different));
  }
  return curves;
}

namespace {

/// Bytes of the UTF-8 sequence that `text` begins with; 0 if it is none (RFC 3629).
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto ones = static_cast<std::size_t>(std::countl_one(byte(0)));
  if (ones == 0) return 1;
  if (ones < 2 || ones > 4 || text.size() < ones) return 0;
  char32_t code = byte(0) & (0x7fU >> ones);
  for (std::size_t i = 1; i < ones; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
    code = (code << 6U) | (byte(i) & 0x3fU);
  }
  const char32_t least = ones == 2 ? 0x80 : ones == 3 ? 0x800 : 0x10000;
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool control = (code >= 0x80 && code < 0xa0) || code == 0xfffe || code == 0xffff;
  return code < least || code > 0x10ffff || surrogate || control ? 0 : ones;
}

/// Valid UTF-8 without control characters: '?' in place of each byte that is none. File and host names may be any
/// bytes, and pictures are for programs that stop at such.
std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (length == 0 || first < 0x20 || first == 0x7f) {
      result += '?';
      text.remove_prefix(1);
    } else {
      result += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return result;
}

/// The same, and with its middle left out if it has more than `most` characters.
std::string printable(std::string_view text, std::size_t most) {
  const std::string all = printable(text);
  std::vector<std::size_t> begins;  // of characters
  for (std::size_t i = 0; i < all.size(); ++i) {
    if ((static_cast<unsigned char>(all[i]) & 0xc0U) != 0x80U) begins.push_back(i);
  }
  if (begins.size() <= most) return all;
  const std::size_t half = most / 2;
  return all.substr(0, begins[half]) + "..." + all.substr(begins[begins.size() - half]);
}

// Okabe and Ito's colors, which people with any kind of sight can tell apart, less their yellow.
constexpr std::array<const char*, max_colors> palette{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#000000", "#888888"};

constexpr int picture_width = 1000;
constexpr int title_height = 70;   // pixels
constexpr int panel_height = 320;  // of one of the two plots
constexpr int below_panel = 66;    // tics and the axis' name
constexpr int legend_line = 22;    // of the legend
constexpr std::size_t max_characters = 110;

/// As gnuplot needs it: between single quotes nothing is special but a single quote.
std::string for_gnuplot(std::string_view text) {
  std::string quoted = "'";
  for (const char c : printable(text, max_characters)) quoted += c == '\'' ? std::string("''") : std::string(1, c);
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
    parts.push_back(concat("NaN with lines linewidth 4 linecolor rgb '", palette[color], "' title ",
                           for_gnuplot(curves.colors[color])));
  }
  for (const bool in_place : {false, true}) {
    parts.push_back(concat("NaN ", style(several ? "#000000" : palette[0], in_place), " title ",
                           in_place ? "'in place'" : "'out of place'"));
  }
  return parts;
}

/// One of the two plots: column 2 of the data is the bandwidth, 3 the time.
std::string panel(const Curves& curves, int column, std::vector<std::string> parts = {}) {
  for (std::size_t i = 0; i < curves.curves.size(); ++i) {
    const Curve& curve = curves.curves[i];
    parts.push_back(
        concat("$curve", i, " using 1:", column, ' ', style(palette[curve.color], curve.in_place), " notitle"));
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
  const int below = static_cast<int>(legend.size()) * legend_line;
  const int height = title_height + 2 * panel_height + 2 * below_panel + below;
  const auto screen = [&](int pixels) {
    return concat("screen ", shortest_number(static_cast<double>(pixels) / height));
  };
  const auto margins = [&](int bottom) {
    return concat("set bmargin at ", screen(bottom), "\nset tmargin at ", screen(bottom + panel_height), '\n');
  };
  const bool svg = format == PictureFormat::svg;
  std::string script = concat("set encoding utf8\nset terminal ", svg ? "svg dynamic" : "pngcairo", " noenhanced size ",
                              picture_width, ',', height, " background rgb 'white' font 'Sans,", svg ? 14 : 11, "'\n",
                              data_of(curves), "set multiplot\n");
  for (std::size_t i = 0; i < curves.title.size(); ++i) {
    script += concat("set label ", i + 1, ' ', for_gnuplot(curves.title[i]), " at screen 0.5, ",
                     screen(height - legend_line * (1 + static_cast<int>(i))), " center\n");
  }
  script += "set lmargin at screen 0.1\nset rmargin at screen 0.97\nset border 3\nset tics nomirror\n";
  script += "set grid xtics ytics linetype 1 linewidth 1 linecolor rgb '#d8d8d8'\n";
  script += concat("set logscale x 2\nset xrange [", shortest_number(static_cast<double>(*bounds.sizes.begin()) / 1.2),
                   ':', shortest_number(static_cast<double>(*bounds.sizes.rbegin()) * 1.2), "]\nset xlabel 'size'\n",
                   size_tics(bounds.sizes));
  script +=
      concat(margins(below + below_panel + panel_height + below_panel), "set nokey\nset yrange [0:*]\nset ylabel '",
             curves.bus ? "bus" : "algorithm", " bandwidth (GB/s)'\n", panel(curves, 2));
  for (std::size_t i = 0; i < curves.title.size(); ++i) script += concat("unset label ", i + 1, '\n');
  script += concat(margins(below + below_panel), "set ylabel 'time per call'\nset logscale y\nset yrange [*:*]\n",
                   time_tics(bounds.shortest, bounds.longest));
  script += concat("set key at screen 0.1, ", screen(below), " left top vertical maxrows ", legend.size(),
                   " Left reverse\n", panel(curves, 3, legend));
  return script + "unset multiplot\n";
}

Result<void> check_gnuplot() {
  const char* const path = std::getenv("PATH");
  for (const std::string& folder : split(path == nullptr ? "/bin:/usr/bin" : path, ':')) {
    const std::string program = concat(folder.empty() ? "." : folder, "/gnuplot");
    struct stat info {};
    if (stat(program.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(program.c_str(), X_OK) == 0) return {};
  }
  return fail(Errc::invalid_argument,
              "--plot: gnuplot, which draws, is not in PATH: install it "
              "(Debian and Ubuntu: apt-get install gnuplot-nox)");
}

Result<std::string> run_gnuplot(const std::string& script, Deadline deadline) {
  // -d: no ~/.gnuplot.
  auto drawn = helper::run({"gnuplot", "-d", "-"}, {deadline - Clock::now(), 64 << 20}, script);
  if (!drawn) {
    const Errc code = drawn.error().code == Errc::timeout ? Errc::timeout : Errc::unavailable;
    return fail(code, concat("--plot: ", drawn.error().message));
  }
  if (drawn->succeeded() && !drawn->out.empty()) return std::move(drawn->out);
  // It shows the line and points to the place first; what is wrong comes last.
  const std::string last = split(std::string(trim(drawn->err)), '\n').back();
  return fail(Errc::unavailable, concat("--plot: gnuplot failed", last.empty() ? "" : ": ", last));
}

}  // namespace ddrun::bench
