#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/comparison.hpp"
#include "report/report.hpp"

namespace ddrun::allreduce {

/// What is asked of every pair.
struct PairsQuantity {
  std::string_view words;
  std::vector<double> Pairs::*values;
  bool more_is_better;
};

inline constexpr PairsQuantity kPairsBandwidth{"bandwidth", &Pairs::gbps, true};
inline constexpr PairsQuantity kPairsLatency{"latency", &Pairs::median_us, false};

/// None if every pair reaches `wanted`, else one that names the worst pair and, of more than two nodes, the worst node.
[[nodiscard]] std::optional<Shortfall> judge(const Pairs& pairs, const PairsQuantity& quantity, double wanted);

/// Each pair with that of the same two nodes in `old`, which is of the file `old_name`; adds to `to`. A run that has
/// none of the nodes falls short: nothing of it is known to be as fast as before.
void compare(const Pairs& old, const Pairs& now, double tolerance, const std::string& old_name, Comparison& to);

}  // namespace ddrun::allreduce
