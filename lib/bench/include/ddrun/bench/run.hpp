#pragma once

#include "ddrun/base/result.hpp"

namespace ddrun::bench {

struct Options;
struct RankEnv;

/// Connects the ranks, runs the benchmark and writes table and reports. Returns the exit status. Blocks until done.
/// Error messages are ready to print; `invalid_argument` is a usage error.
[[nodiscard]] Result<int> run(const Options& options, const RankEnv& env);

}  // namespace ddrun::bench
