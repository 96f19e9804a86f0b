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

/// "10%" or "2.5 %": 0 to less than 100. Gives 0.1.
[[nodiscard]] Result<double> parse_tolerance(const std::string& text);

/// Before the run: whether `old` can be compared with what is `planned` (number of ranks, buffers, the rows' `what` and
/// `bytes`, and of pairs their bytes). `invalid_argument` if it is of another number of ranks or of other buffers, had
/// wrong elements, ended early, or has nothing in common with it.
[[nodiscard]] Result<void> check_comparable(const Report& old, const Report& planned);

struct Comparison {
  std::vector<Shortfall> shortfalls;  ///< in the rows' order
  std::vector<std::string> notes;     ///< other differences, one line each
  std::size_t compared = 0;           ///< measurements
  std::size_t slower = 0;             ///< of those: than allowed
};

/// Each measurement with that of the same case, size and placement in `old`. It falls short if its speed, 1 / time, is
/// less than (1 - tolerance) times that of before. Times are means, as in the table. Of pairs, each one's bandwidth and
/// median latency with that of the same two nodes.
[[nodiscard]] Comparison compare(const Report& old, const Report& now, double tolerance);

}  // namespace ddrun::bench
