#include "process_mapping.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::pmi {

namespace {

constexpr std::size_t mapping_bound = 674;

/// Whether the first `period` parts, repeated and cut off at the last rank, are all of `parts`.
bool repeats(const Placement& parts, std::size_t period) {
  for (std::size_t i = period; i < parts.size(); ++i) {
    const auto& [node, ranks] = parts[i - period];
    const bool is_last = i + 1 == parts.size();
    if (parts[i].first != node || (is_last ? parts[i].second > ranks : parts[i].second != ranks)) return false;
  }
  return true;
}

}  // namespace

std::string encode_node(const std::vector<int>& ranks, std::string_view random) {
  std::vector<RankRange> ranges;
  for (const int rank : ranks) {
    if (ranges.empty() || rank != ranges.back().first + ranges.back().count) ranges.push_back({rank});
    ++ranges.back().count;
  }
  std::string blob;
  bytes::put(blob, static_cast<std::uint32_t>(ranges.size()));
  for (const RankRange& range : ranges) {
    for (const std::int32_t number : {range.first, range.count}) bytes::put(blob, number);
  }
  return blob.append(random);
}

std::optional<std::string_view> decode_node(std::string_view blob, int node, std::vector<RankRange>& all) {
  bytes::Reader reader(blob);
  for (auto left = reader.count(2 * sizeof(std::int32_t)); left > 0; --left) {
    const auto first = reader.number<std::int32_t>();
    all.push_back({first, reader.number<std::int32_t>(), node});
  }
  return reader.ok() ? std::optional(reader.left()) : std::nullopt;
}

std::optional<Placement> place(std::vector<RankRange> all, int size) {
  std::sort(all.begin(), all.end(), [](const RankRange& one, const RankRange& two) { return one.first < two.first; });
  Placement placement;
  std::int64_t next = 0;
  for (const auto& [first, count, node] : all) {
    if (first != next || count <= 0) return std::nullopt;
    next += count;
    placement.emplace_back(node, count);
  }
  return next == size ? std::optional(std::move(placement)) : std::nullopt;
}

Placement number_nodes(const Placement& placement) {
  std::map<int, int> numbers;
  Placement numbered;
  for (const auto& [node, ranks] : placement) {
    if (ranks <= 0) continue;
    const int number = numbers.try_emplace(node, static_cast<int>(numbers.size())).first->second;
    if (!numbered.empty() && numbered.back().first == number) numbered.back().second += ranks;
    else numbered.emplace_back(number, ranks);
  }
  return numbered;
}

int node_of_rank(const Placement& numbered, int rank) {
  for (const auto& [node, ranks] : numbered) {
    if (rank < ranks) return node;
    rank -= ranks;
  }
  return 0;
}

std::optional<std::string> process_mapping(const Placement& numbered) {
  std::size_t period = 1;
  while (period < numbered.size() && !repeats(numbered, period)) ++period;
  std::string mapping = "(vector";
  for (std::size_t i = 0; i < std::min(period, numbered.size());) {
    const auto [node, ranks] = numbered[i];
    int nodes = 0;
    while (i < period && numbered[i] == Placement::value_type(node + nodes, ranks)) ++nodes, ++i;
    mapping += concat(",(", node, ",", nodes, ",", ranks, ")");
    if (mapping.size() >= mapping_bound) return std::nullopt;
  }
  mapping += ")";
  if (numbered.empty() || mapping.size() >= mapping_bound) return std::nullopt;
  return mapping;
}

}  // namespace ddrun::pmi
