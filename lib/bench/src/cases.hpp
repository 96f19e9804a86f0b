#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/bench/options.hpp"
#include "results.hpp"

namespace ddrun::bench {

/// What is to be measured by `ranks` ranks, in this order: collectives, of each its types, operations and roots.
[[nodiscard]] std::vector<Case> cases(const Options& options, int ranks);

/// The sizes to run, ascending: bytes, rounded down to whole elements for each of `ranks` ranks where there is a block
/// for each, and at least one of these. A barrier has the size 0 alone.
[[nodiscard]] std::vector<std::uint64_t> sizes(const Options& options, std::uint64_t max_bytes, const Case& what,
                                               int ranks);

/// Rows for all of them without measurements: `what`, `bytes` and `count`. Pairs have none.
[[nodiscard]] std::vector<Row> planned_rows(const Options& options, std::uint64_t max_bytes, int ranks);

/// What has to be equal on all ranks, as words "name=value".
[[nodiscard]] std::string must_agree(const Options& options);

/// The last size to run, for `ranks` ranks on this machine with two buffers each.
///
/// Asked for: that, or `invalid_argument` if the machine (or our cgroup) does not have the memory: better than an
/// out-of-memory kill of some innocent. Not asked for: 128 MiB, but all buffers together stay below half of what
/// is free and below 2 GiB, so that many ranks on a small machine still are a quick test.
[[nodiscard]] Result<std::uint64_t> max_bytes(const Options& options, int ranks);

}  // namespace ddrun::bench
