#include <algorithm>

#include "ddrun/base/text.hpp"
#include "measure/pairs.hpp"
#include "report/units.hpp"

namespace ddrun::allreduce {

namespace {

constexpr std::size_t kMostShown = 64;

std::string right(const std::string& text, std::size_t width) {
  return text.size() < width ? std::string(width - text.size(), ' ') + text : text;
}

/// `cell` gives the text for two different nodes.
template <class Cell>
std::string matrix(const Pairs& pairs, Cell cell) {
  const int count = static_cast<int>(pairs.nodes.size());
  std::size_t width = 12;
  for (const std::string& name : pairs.nodes) width = std::max(width, name.size());
  std::string text = "#" + right("", width);
  for (const std::string& name : pairs.nodes) text += "  " + right(name, width);
  text += '\n';
  for (int first = 0; first < count; ++first) {
    text += " " + right(pairs.nodes[static_cast<std::size_t>(first)], width);
    for (int second = 0; second < count; ++second) {
      text += "  " + right(first == second ? "-" : cell(pairs.at(first, second)), width);
    }
    text += '\n';
  }
  return text;
}

std::string both(const Pairs& pairs, const Pairs::Worst& worst) {
  return concat(pairs.nodes[static_cast<std::size_t>(worst.first)], " and ",
                pairs.nodes[static_cast<std::size_t>(worst.second)]);
}

}  // namespace

std::string table_of(const Pairs& pairs) {
  std::string text = concat("#\n# pairs of ", pairs.nodes.size(), ": ", pairs.steps, " steps, ", pairs.ranks_per_node,
                            pairs.ranks_per_node == 1 ? " rank" : " ranks", " of each at the same time\n");
  if (pairs.nodes.size() <= kMostShown) {
    text += concat("#\n# bandwidth each way (GB/s), ", pairs.bytes, " bytes of each rank\n");
    text += matrix(pairs, [&](std::size_t at) { return two_places(pairs.gbps[at]); });
    text += "#\n# latency (us), 8 bytes both ways: minimum/median\n";
    text += matrix(pairs, [&](std::size_t at) {
      return concat(two_places(pairs.minimum_us[at]), '/', two_places(pairs.median_us[at]));
    });
  } else {
    text += concat("# more than ", kMostShown, " are not shown; -J and --csv have them all\n");
  }
  text += "#\n";
  if (pairs.slowest.first >= 0) {
    const double least = pairs.gbps[pairs.at(pairs.slowest.first, pairs.slowest.second)];
    const double longest = pairs.median_us[pairs.at(pairs.latest.first, pairs.latest.second)];
    text += concat("# Least bandwidth      : ", both(pairs, pairs.slowest), ", ", two_places(least), " GB/s\n");
    text += concat("# Longest latency      : ", both(pairs, pairs.latest), ", ", two_places(longest), " us\n");
  }
  if (pairs.worst_node >= 0) {
    text += concat("# Worst of all         : ", pairs.nodes[static_cast<std::size_t>(pairs.worst_node)],
                   ", whose median bandwidth is the least\n");
  }
  return text;
}

}  // namespace ddrun::allreduce
