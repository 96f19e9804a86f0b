#include "reports.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "pairs.hpp"

namespace ddrun::bench {

namespace {

using collectives::Collective;

struct PairsQuantity {
  std::string_view name;
  std::vector<double> Pairs::*values;
  bool more_is_better;
};

constexpr PairsQuantity pairs_bandwidth{"bandwidth", &Pairs::gbps, true};
constexpr PairsQuantity pairs_latency{"latency", &Pairs::median_us, false};

std::string describe(const PairsQuantity& quantity, double value) {
  return quantity.more_is_better ? format_number(value) + " GB/s" : format_time(value);
}

/// None if every pair reaches `wanted`. Otherwise names the worst pair, the number of failing pairs and, with more than
/// two nodes, the worst node.
std::optional<Violation> find_violation(const Pairs& pairs, const PairsQuantity& quantity, double wanted) {
  const int count = static_cast<int>(pairs.nodes.size());
  const std::vector<double>& values = pairs.*quantity.values;
  Pairs::Worst worst;
  double least = 1;
  int failures = 0;
  for (int first = 0; first < count; ++first) {
    for (int second = first + 1; second < count; ++second) {
      const double value = values[pairs.at(first, second)];
      const double ratio = quantity.more_is_better ? value / wanted : wanted / value;
      if (ratio >= 1) continue;
      ++failures;
      if (ratio < least) worst = {first, second};
      least = std::min(least, ratio);
    }
  }
  if (failures == 0) return std::nullopt;
  const auto name = [&](int node) -> const std::string& { return pairs.nodes[static_cast<std::size_t>(node)]; };
  const std::string difference =
      quantity.more_is_better ? format_percent(1 - least) + " less" : format_percent(1 / least - 1) + " more";
  const int all = count * (count - 1) / 2;
  const int node = worst_node_of(pairs, values, quantity.more_is_better ? 1 : -1);
  return Violation{
      concat("pair ", name(worst.first), " and ", name(worst.second), ": ", quantity.name, ' ',
             describe(quantity, values[pairs.at(worst.first, worst.second)]), ", ", describe(quantity, wanted),
             " wanted: ", difference, "; ", failures, " of ", all, all == 1 ? " pair" : " pairs", " fell short",
             node < 0 ? std::string() : concat(", worst node ", name(node))),
      least};
}

enum class Kind { bandwidth, latency };

constexpr const char* option_of(Kind kind) { return kind == Kind::bandwidth ? "--min-busbw" : "--max-latency"; }

/// Parses a positive number at the beginning and removes it from `text`.
std::optional<double> parse_number_prefix(std::string_view& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(value) || value <= 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<double> gigabytes_in(std::string_view text) {
  const auto value = parse_number_prefix(text);
  return text.empty() || text == "GB/s" ? value : std::nullopt;
}

std::optional<double> microseconds_in(std::string_view text) {
  const auto value = parse_number_prefix(text);
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
    if (at != std::string::npos) threshold.bytes = TRY(parse_size(one.substr(at + 1)));
    all.push_back(threshold);
  }
  return all;
}

/// Whether `bytes`, rounded down to whole elements (and blocks per rank), is the row's size.
bool has_size(const Row& row, std::uint64_t bytes) {
  return row.count != 0 && row.bytes <= bytes && bytes - row.bytes < row.bytes / row.count;
}

/// The row of a case to which a threshold applies; null: none.
const Row* row_for(Kind kind, const Threshold& threshold, const std::vector<const Row*>& rows) {
  const bool barrier = rows.front()->spec.collective == Collective::barrier;
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
                                    [&](const auto& one) { return same_case(one.front()->spec, row.spec); });
    if (known == cases.end()) {
      cases.push_back({&row});
    } else {
      known->push_back(&row);
    }
  }
  return cases;
}

/// The faster placement; null: neither was measured.
const Measurement* better_placement(const Row& row) {
  const Measurement* best = nullptr;
  for (const Placement& placement : placements) {
    const Measurement& one = row.*placement.of;
    if (measured(one) && (best == nullptr || one.microseconds < best->microseconds)) best = &one;
  }
  return best;
}

std::optional<Violation> find_violation(Kind kind, const Threshold& threshold, const Row& row) {
  const Measurement* const best = better_placement(row);
  if (best == nullptr)
    return Violation{concat(describe(row), ": not measured: ", row.out_of_place.unsupported_reason), 0};
  const std::string where =
      concat(describe(row), ' ', best == &row.in_place ? placements[1].name : placements[0].name, ": ");
  if (kind == Kind::bandwidth) {
    const double ratio = best->busbw / threshold.value;
    if (ratio >= 1) return std::nullopt;
    return Violation{concat(where, "busbw ", format_number(best->busbw), " GB/s, ", format_number(threshold.value),
                            " wanted: ", format_percent(1 - ratio), " less"),
                     ratio};
  }
  const double ratio = threshold.value / best->microseconds;
  if (ratio >= 1) return std::nullopt;
  return Violation{concat(where, "latency ", format_time(best->microseconds), ", ", format_time(threshold.value),
                          " wanted: ", format_percent(1 / ratio - 1), " more"),
                   ratio};
}

using ThresholdLists = std::array<std::pair<Kind, const std::vector<Threshold>*>, 2>;

ThresholdLists threshold_lists(const Thresholds& thresholds) {
  return {std::pair(Kind::bandwidth, &thresholds.min_busbw), std::pair(Kind::latency, &thresholds.max_latency)};
}

}  // namespace

Result<std::vector<Threshold>> parse_min_busbw(const std::string& text) { return parse(Kind::bandwidth, text); }
Result<std::vector<Threshold>> parse_max_latency(const std::string& text) { return parse(Kind::latency, text); }

Result<void> check_thresholds(const Thresholds& thresholds, const Report& planned) {
  if (!thresholds.min_busbw.empty() && planned.setting.size == 1) {
    return fail(Errc::invalid_argument, "--min-busbw: a group of one has no bus bandwidth: start more ranks");
  }
  if (planned.summary.pairs) {
    for (const auto& [kind, all] : threshold_lists(thresholds)) {
      if (std::any_of(all->begin(), all->end(), [](const Threshold& one) { return one.bytes.has_value(); })) {
        return fail(Errc::invalid_argument, concat(option_of(kind), ": pairs are measured at one size, so name none"));
      }
    }
    return {};
  }
  const auto cases = by_case(planned.summary.rows);
  for (const auto& [kind, all] : threshold_lists(thresholds)) {
    for (const Threshold& threshold : *all) {
      bool applies = false;
      for (const auto& one : cases) {
        if (row_for(kind, threshold, one) != nullptr) {
          applies = true;
        } else if (one.front()->spec.collective != Collective::barrier) {
          return fail(Errc::invalid_argument,
                      concat(option_of(kind), ": ", describe(one.front()->spec), " is not measured at ",
                             format_size(*threshold.bytes), ", only at ", one.size(), " sizes from ",
                             format_size(one.front()->bytes), " to ", format_size(one.back()->bytes)));
        }
      }
      if (!applies) return fail(Errc::invalid_argument, concat(option_of(kind), ": nothing is measured that has it"));
    }
  }
  return {};
}

std::vector<Violation> threshold_failures(const Thresholds& thresholds, const Summary& summary) {
  std::vector<Violation> all;
  for (const auto& [kind, wanted] : threshold_lists(thresholds)) {
    for (const Threshold& threshold : *wanted) {
      if (!summary.pairs) continue;
      const PairsQuantity& quantity = kind == Kind::bandwidth ? pairs_bandwidth : pairs_latency;
      if (auto violation = find_violation(*summary.pairs, quantity, threshold.value))
        all.push_back(std::move(*violation));
    }
  }
  for (const auto& one : by_case(summary.rows)) {
    for (const auto& [kind, wanted] : threshold_lists(thresholds)) {
      for (const Threshold& threshold : *wanted) {
        const Row* const row = row_for(kind, threshold, one);
        if (row == nullptr) continue;
        if (auto violation = find_violation(kind, threshold, *row)) all.push_back(std::move(*violation));
      }
    }
  }
  return all;
}

}  // namespace ddrun::bench
