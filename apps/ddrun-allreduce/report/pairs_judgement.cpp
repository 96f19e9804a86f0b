#include "report/pairs_judgement.hpp"

#include <algorithm>
#include <functional>

#include "ddrun/base/text.hpp"
#include "measure/pairs.hpp"
#include "report/units.hpp"

namespace ddrun::allreduce {

namespace {

std::string in_words(const PairsQuantity& quantity, double value) {
  return quantity.more_is_better ? number_in_words(value) + " GB/s" : time_in_words(value);
}

/// How much of what is wanted is reached, 1: just so.
double reached(const PairsQuantity& quantity, double value, double wanted) {
  return quantity.more_is_better ? value / wanted : wanted / value;
}

/// The pair that reaches the least of what is wanted of it, and how many do not reach all.
struct Finding {
  Pairs::Worst worst;
  double ratio = 0;
  std::size_t pairs = 0;
  std::size_t short_of = 0;
};

/// `wanted` of two nodes; 0: nothing is, and such a pair does not count.
Finding look(const Pairs& pairs, const PairsQuantity& quantity, const std::function<double(int, int)>& wanted,
             double enough) {
  Finding finding;
  const int count = static_cast<int>(pairs.nodes.size());
  for (int first = 0; first < count; ++first) {
    for (int second = first + 1; second < count; ++second) {
      const double needed = wanted(first, second);
      if (needed <= 0) continue;
      const double ratio = reached(quantity, (pairs.*quantity.values)[pairs.at(first, second)], needed);
      ++finding.pairs;
      finding.short_of += ratio < enough ? 1 : 0;
      if (finding.worst.first >= 0 && ratio >= finding.ratio) continue;
      finding.worst = {first, second};
      finding.ratio = ratio;
    }
  }
  return finding;
}

const std::string& name(const Pairs& pairs, int node) { return pairs.nodes[static_cast<std::size_t>(node)]; }

/// "pair a and b: bandwidth 2 GB/s".
std::string begin(const Pairs& pairs, const PairsQuantity& quantity, const Finding& finding) {
  const auto [first, second] = finding.worst;
  return concat("pair ", name(pairs, first), " and ", name(pairs, second), ": ", quantity.words, ' ',
                in_words(quantity, (pairs.*quantity.values)[pairs.at(first, second)]));
}

/// "; 3 of 6 pairs fell short, worst node c".
std::string end(const Pairs& pairs, const PairsQuantity& quantity, const Finding& finding) {
  const int node = worst_node_of(pairs, pairs.*quantity.values, quantity.more_is_better ? 1 : -1);
  return concat("; ", finding.short_of, " of ", finding.pairs, finding.pairs == 1 ? " pair" : " pairs", " fell short",
                node < 0 ? std::string() : concat(", worst node ", name(pairs, node)));
}

}  // namespace

std::optional<Shortfall> judge(const Pairs& pairs, const PairsQuantity& quantity, double wanted) {
  const Finding finding = look(
      pairs, quantity, [wanted](int, int) { return wanted; }, 1);
  if (finding.short_of == 0) return std::nullopt;
  const std::string how_much = quantity.more_is_better ? percent_in_words(1 - finding.ratio) + " less"
                                                       : percent_in_words(1 / finding.ratio - 1) + " more";
  return Shortfall{concat(begin(pairs, quantity, finding), ", ", in_words(quantity, wanted), " wanted: ", how_much,
                          end(pairs, quantity, finding)),
                   finding.ratio};
}

void compare(const Pairs& old, const Pairs& now, double tolerance, const std::string& old_name, Comparison& to) {
  std::vector<int> before;  // of each node now: its number in the old report, or -1
  for (const std::string& node : now.nodes) {
    const auto found = std::find(old.nodes.begin(), old.nodes.end(), node);
    before.push_back(found == old.nodes.end() ? -1 : static_cast<int>(found - old.nodes.begin()));
  }
  std::size_t common = 0;
  for (const PairsQuantity* quantity : {&kPairsBandwidth, &kPairsLatency}) {
    const auto old_value = [&](int first, int second) {
      const int one = before[static_cast<std::size_t>(first)];
      const int other = before[static_cast<std::size_t>(second)];
      return one < 0 || other < 0 ? 0 : (old.*quantity->values)[old.at(one, other)];
    };
    const Finding finding = look(now, *quantity, old_value, 1 - tolerance);
    common = std::max(common, finding.pairs);
    to.compared += finding.pairs;
    to.slower += finding.short_of;
    if (finding.short_of == 0) continue;
    to.shortfalls.push_back({concat(begin(now, *quantity, finding), ", ",
                                    in_words(*quantity, old_value(finding.worst.first, finding.worst.second)), " in ",
                                    old_name, ": ", percent_in_words(1 - finding.ratio), " slower, ",
                                    percent_in_words(tolerance), " allowed", end(now, *quantity, finding)),
                             finding.ratio});
  }
  const std::size_t all = now.nodes.size() * (now.nodes.size() - 1) / 2;
  if (common == 0) to.shortfalls.push_back({concat("no pair of nodes of this run is in ", old_name), 0});
  else if (common < all) to.notes.push_back(concat(all - common, " pairs of this run are not in ", old_name));
}

}  // namespace ddrun::allreduce
