#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "report/report.hpp"

namespace ddrun::allreduce {

/// What a machine has to reach, at one size of each case.
struct Threshold {
  double value = 0;                    ///< GB/s of bus bandwidth, or microseconds
  std::optional<std::uint64_t> bytes;  ///< none: the largest size of the case (bandwidth), its smallest (latency)
};

/// The better of the two placements has to reach it: the mean time of the slowest rank, as in the table.
/// A barrier has no bandwidth and no size, so only a latency without a size is asked of it.
struct Thresholds {
  std::vector<Threshold> min_busbw;
  std::vector<Threshold> max_latency;

  [[nodiscard]] bool any() const { return !min_busbw.empty() || !max_latency.empty(); }
};

/// "10", "10@64M", "10@64M,2.5@1M": GB/s, and of which size.
[[nodiscard]] Result<std::vector<Threshold>> parse_min_busbw(const std::string& text);
/// "20us", "1.5ms@1M,15us": the unit is needed (ns, us, ms, s).
[[nodiscard]] Result<std::vector<Threshold>> parse_max_latency(const std::string& text);

/// Fails with `invalid_argument` if one of them could not be judged: a size that is not among the rows that are
/// going to be measured, or a bandwidth of a group of one. Of `rows`, `what`, `bytes` and `count` are used.
[[nodiscard]] Result<void> check_judgeable(const Thresholds& thresholds, const std::vector<Row>& rows, int ranks);

/// In the rows' order. A case that the back end lacks falls short.
[[nodiscard]] std::vector<Shortfall> shortfalls(const Thresholds& thresholds, const std::vector<Row>& rows);

}  // namespace ddrun::allreduce
