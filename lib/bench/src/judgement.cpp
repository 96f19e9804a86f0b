#include "judgement.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "pairs.hpp"

namespace ddrun::bench {

namespace {

using collectives::Collective;

/// What is asked of every pair.
struct PairsQuantity {
  std::string_view words;
  std::vector<double> Pairs::*values;
  bool more_is_better;
};

constexpr PairsQuantity pairs_bandwidth{"bandwidth", &Pairs::gbps, true};
constexpr PairsQuantity pairs_latency{"latency", &Pairs::median_us, false};

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

/// None if every pair reaches `wanted`, else one that names the worst pair and, of more than two nodes, the worst node.
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

/// Each pair with that of the same two nodes in `old`, which is of the file `old_name`; adds to `to`. A run that has
/// none of the nodes falls short: nothing of it is known to be as fast as before.
void compare(const Pairs& old, const Pairs& now, double tolerance, const std::string& old_name, Comparison& to) {
  std::vector<int> before;  // of each node now: its number in the old report, or -1
  for (const std::string& node : now.nodes) {
    const auto found = std::find(old.nodes.begin(), old.nodes.end(), node);
    before.push_back(found == old.nodes.end() ? -1 : static_cast<int>(found - old.nodes.begin()));
  }
  std::size_t common = 0;
  for (const PairsQuantity* quantity : {&pairs_bandwidth, &pairs_latency}) {
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

enum class Kind { bandwidth, latency };

constexpr const char* option_of(Kind kind) { return kind == Kind::bandwidth ? "--min-busbw" : "--max-latency"; }

/// A positive number at the beginning; what is behind it stays in `text`.
std::optional<double> take_number(std::string_view& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value) || value <= 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<double> gigabytes_in(std::string_view text) {
  const auto value = take_number(text);
  return text.empty() || text == "GB/s" ? value : std::nullopt;
}

std::optional<double> microseconds_in(std::string_view text) {
  const auto value = take_number(text);
  for (const auto& [unit, factor] : {std::pair("ns", 1e-3), {"us", 1.0}, {"ms", 1e3}, {"s", 1e6}}) {
    if (value && text == unit) return *value * factor;
  }
  return std::nullopt;
}

Result<std::vector<Threshold>> parse(Kind kind, const std::string& text) {
  std::vector<Threshold> all;
  for (const std::string& one : split(text, ',')) {
    const std::size_t at = one.find('@');
    const std::string amount = one.substr(0, at);
    const auto value = kind == Kind::bandwidth ? gigabytes_in(amount) : microseconds_in(amount);
    if (!value) {
      return fail(
          Errc::invalid_argument,
          concat("must be ", kind == Kind::bandwidth ? "GB/s such as 10 or 10@64M" : "a time such as 20us or 1.5ms@64K",
                 ", not '", one, "'"));
    }
    Threshold threshold{*value, std::nullopt};
    if (at != std::string::npos) {
      const auto bytes = parse_size(one.substr(at + 1));
      if (!bytes) return tl::unexpected(bytes.error());
      threshold.bytes = *bytes;
    }
    all.push_back(threshold);
  }
  return all;
}

/// Sizes are rounded down to whole elements (and blocks for each rank), so the one asked for is too.
bool has_size(const Row& row, std::uint64_t bytes) {
  return row.count != 0 && row.bytes <= bytes && bytes - row.bytes < row.bytes / row.count;
}

/// The row that a threshold is about among those of one case; null: none.
const Row* chosen(Kind kind, const Threshold& threshold, const std::vector<const Row*>& rows) {
  const bool barrier = rows.front()->what.collective == Collective::barrier;
  if (barrier) return kind == Kind::latency && !threshold.bytes ? rows.front() : nullptr;
  if (threshold.bytes) {
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const Row* row) { return has_size(*row, *threshold.bytes); });
    return found == rows.end() ? nullptr : *found;
  }
  const auto less = [](const Row* one, const Row* other) { return one->bytes < other->bytes; };
  return kind == Kind::bandwidth ? *std::max_element(rows.begin(), rows.end(), less)
                                 : *std::min_element(rows.begin(), rows.end(), less);
}

std::vector<std::vector<const Row*>> by_case(const std::vector<Row>& rows) {
  std::vector<std::vector<const Row*>> cases;
  for (const Row& row : rows) {
    const auto known = std::find_if(cases.begin(), cases.end(),
                                    [&](const auto& one) { return same_case(one.front()->what, row.what); });
    if (known == cases.end()) {
      cases.push_back({&row});
    } else {
      known->push_back(&row);
    }
  }
  return cases;
}

/// The better of what was measured; null: nothing was.
const Measurement* better(const Row& row) {
  const Measurement* best = nullptr;
  for (const Placement& placement : placements) {
    const Measurement& one = row.*placement.of;
    if (measured(one) && (best == nullptr || one.microseconds < best->microseconds)) best = &one;
  }
  return best;
}

std::optional<Shortfall> judge(Kind kind, const Threshold& threshold, const Row& row) {
  const Measurement* const best = better(row);
  if (best == nullptr) return Shortfall{concat(in_words(row), ": not measured: ", row.out_of_place.lacking), 0};
  const std::string where =
      concat(in_words(row), ' ', best == &row.in_place ? placements[1].words : placements[0].words, ": ");
  if (kind == Kind::bandwidth) {
    const double ratio = best->busbw / threshold.value;
    if (ratio >= 1) return std::nullopt;
    return Shortfall{concat(where, "busbw ", number_in_words(best->busbw), " GB/s, ", number_in_words(threshold.value),
                            " wanted: ", percent_in_words(1 - ratio), " less"),
                     ratio};
  }
  const double ratio = threshold.value / best->microseconds;
  if (ratio >= 1) return std::nullopt;
  return Shortfall{concat(where, "latency ", time_in_words(best->microseconds), ", ", time_in_words(threshold.value),
                          " wanted: ", percent_in_words(1 / ratio - 1), " more"),
                   ratio};
}

using Asked = std::array<std::pair<Kind, const std::vector<Threshold>*>, 2>;

Asked asked(const Thresholds& thresholds) {
  return {std::pair(Kind::bandwidth, &thresholds.min_busbw), std::pair(Kind::latency, &thresholds.max_latency)};
}

}  // namespace

Result<std::vector<Threshold>> parse_min_busbw(const std::string& text) { return parse(Kind::bandwidth, text); }
Result<std::vector<Threshold>> parse_max_latency(const std::string& text) { return parse(Kind::latency, text); }

Result<void> check_judgeable(const Thresholds& thresholds, const Report& planned) {
  if (!thresholds.min_busbw.empty() && planned.setting.size == 1) {
    return fail(Errc::invalid_argument, "--min-busbw: a group of one has no bus bandwidth: start more ranks");
  }
  if (planned.summary.pairs) {
    for (const auto& [kind, all] : asked(thresholds)) {
      if (std::any_of(all->begin(), all->end(), [](const Threshold& one) { return one.bytes.has_value(); })) {
        return fail(Errc::invalid_argument, concat(option_of(kind), ": pairs are measured at one size, so name none"));
      }
    }
    return {};
  }
  const auto cases = by_case(planned.summary.rows);
  for (const auto& [kind, all] : asked(thresholds)) {
    for (const Threshold& threshold : *all) {
      bool applies = false;
      for (const auto& one : cases) {
        if (chosen(kind, threshold, one) != nullptr) {
          applies = true;
        } else if (one.front()->what.collective != Collective::barrier) {
          return fail(Errc::invalid_argument,
                      concat(option_of(kind), ": ", in_words(one.front()->what), " is not measured at ",
                             size_in_words(*threshold.bytes), ", only at ", one.size(), " sizes from ",
                             size_in_words(one.front()->bytes), " to ", size_in_words(one.back()->bytes)));
        }
      }
      if (!applies) return fail(Errc::invalid_argument, concat(option_of(kind), ": nothing is measured that has it"));
    }
  }
  return {};
}

std::vector<Shortfall> shortfalls(const Thresholds& thresholds, const Summary& summary) {
  std::vector<Shortfall> all;
  for (const auto& [kind, wanted] : asked(thresholds)) {
    for (const Threshold& threshold : *wanted) {
      if (!summary.pairs) continue;
      const PairsQuantity& quantity = kind == Kind::bandwidth ? pairs_bandwidth : pairs_latency;
      if (auto shortfall = judge(*summary.pairs, quantity, threshold.value)) all.push_back(std::move(*shortfall));
    }
  }
  for (const auto& one : by_case(summary.rows)) {
    for (const auto& [kind, wanted] : asked(thresholds)) {
      for (const Threshold& threshold : *wanted) {
        const Row* const row = chosen(kind, threshold, one);
        if (row == nullptr) continue;
        if (auto shortfall = judge(kind, threshold, *row)) all.push_back(std::move(*shortfall));
      }
    }
  }
  return all;
}

namespace {

/// Bytes from which on people think of bandwidth rather than of time.
constexpr std::uint64_t large_bytes = 64 << 10;

bool same_row(const Row& one, const Row& other) { return one.bytes == other.bytes && same_case(one.what, other.what); }

const Row* find(const Row& wanted, const std::vector<Row>& rows) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return same_row(row, wanted); });
  return found == rows.end() ? nullptr : &*found;
}

/// The part of the path that people use to tell files apart.
std::string file_of(const Report& old) { return old.name.substr(old.name.rfind('/') + 1); }

Shortfall shortfall(const Row& row, const Placement& placement, const Measurement& before, double tolerance,
                    const std::string& old_name) {
  const Measurement& now = row.*placement.of;
  const double ratio = before.microseconds / now.microseconds;
  const std::string values =
      row.bytes >= large_bytes && now.busbw > 0 && before.busbw > 0
          ? concat("busbw ", number_in_words(now.busbw), " GB/s, ", number_in_words(before.busbw), " in ", old_name)
          : concat("time ", time_in_words(now.microseconds), ", ", time_in_words(before.microseconds), " in ",
                   old_name);
  return {concat(in_words(row), ' ', placement.words, ": ", values, ": ", percent_in_words(1 - ratio), " slower, ",
                 percent_in_words(tolerance), " allowed"),
          ratio};
}

}  // namespace

Result<double> parse_tolerance(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error != std::errc() || trim(rest) != "%" || value < 0 || value >= 100) {
    return fail(Errc::invalid_argument, concat("must be 0% to less than 100%, for example 10%, not '", text, "'"));
  }
  return value / 100;
}

Result<void> check_comparable(const Report& old, const Report& planned) {
  const int ranks = planned.setting.size;
  const std::vector<Row>& rows = planned.summary.rows;
  const auto refused = [&](const auto&... why) {
    return fail(Errc::invalid_argument, concat("--compare: ", old.name, ' ', why...));
  };
  if (!old.summary.error.empty()) return refused("is of a run that ended early: ", old.summary.error);
  if (old.summary.wrong != 0) return refused("is of a run with ", old.summary.wrong, " wrong elements");
  if (old.setting.size != ranks) return refused("is of ", old.setting.size, " ranks, this run has ", ranks);
  if (!old.setting.buffers.empty() && !planned.setting.buffers.empty() &&
      old.setting.buffers != planned.setting.buffers) {
    return refused("is of ", old.setting.buffers, " buffers, this run has ", planned.setting.buffers,
                   " ones (--buffers)");
  }
  if (planned.summary.pairs) {
    if (!old.summary.pairs) return refused("has no pairs, which are all that this run measures");
    if (old.summary.pairs->bytes == planned.summary.pairs->bytes) return {};
    return refused("is of pairs with ", old.summary.pairs->bytes, " bytes, this run has ", planned.summary.pairs->bytes,
                   " (--maxbytes)");
  }
  const bool common =
      std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return find(row, old.summary.rows) != nullptr; });
  if (!common) {
    return refused("has nothing that this run measures: collective, type, operation, root and size must be the same");
  }
  return {};
}

Comparison compare(const Report& old, const Report& now, double tolerance) {
  Comparison result;
  const std::string name = file_of(old);
  if (old.summary.pairs && now.summary.pairs) {
    compare(*old.summary.pairs, *now.summary.pairs, tolerance, name, result);
  }
  std::size_t missing = 0;
  for (const Row& row : now.summary.rows) {
    const Row* const before = find(row, old.summary.rows);
    for (const Placement& placement : placements) {
      const Measurement& one = row.*placement.of;
      if (!measured(one)) continue;
      if (before == nullptr || !measured(before->*placement.of)) {
        ++missing;
        continue;
      }
      ++result.compared;
      const Measurement& other = before->*placement.of;
      if (one.microseconds * (1 - tolerance) > other.microseconds) {
        ++result.slower;
        result.shortfalls.push_back(shortfall(row, placement, other, tolerance, name));
      }
    }
  }
  std::size_t left = 0;
  for (const Row& row : old.summary.rows) {
    const Row* const after = find(row, now.summary.rows);
    for (const Placement& placement : placements) {
      if (measured(row.*placement.of) && (after == nullptr || !measured(after->*placement.of))) ++left;
    }
  }
  if (missing != 0) result.notes.push_back(concat(missing, " measurements of this run are not in ", name));
  if (left != 0) result.notes.push_back(concat(left, " measurements of ", name, " are not in this run"));
  if (old.setting.backend != now.setting.backend) {
    result.notes.push_back(concat("back end ", now.setting.backend, ", ", old.setting.backend, " in ", name));
  }
  return result;
}

}  // namespace ddrun::bench
