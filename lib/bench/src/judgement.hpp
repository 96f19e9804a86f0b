#pragma once

#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/bench/options.hpp"
#include "results.hpp"

namespace ddrun::bench {

/// "10", "10@64M", "10@64M,2.5@1M": GB/s, and of which size.
[[nodiscard]] Result<std::vector<Threshold>> parse_min_busbw(const std::string& text);
/// "20us", "1.5ms@1M,15us": the unit is needed (ns, us, ms, s).
[[nodiscard]] Result<std::vector<Threshold>> parse_max_latency(const std::string& text);

/// Fails with `invalid_argument` if one of them could not be judged: a size that is not among the rows that are
/// going to be measured, or any size of pairs, or a bandwidth of a group of one. Of `planned`, the number of ranks, the
/// rows' `what`, `bytes` and `count`, and whether there are pairs count.
[[nodiscard]] Result<void> check_judgeable(const Thresholds& thresholds, const Report& planned);

/// In the rows' order. A case that the back end lacks falls short. Of pairs one for each threshold, with the worst pair
/// and the worst node.
[[nodiscard]] std::vector<Shortfall> shortfalls(const Thresholds& thresholds, const Summary& summary);

}  // namespace ddrun::bench
