#pragma once

#include "ddrun/bench/options.hpp"
#include "ddrun/bench/place.hpp"

namespace ddrun::bench {

/// Meets the other ranks, measures what is asked for, and writes table and reports; returns the exit status. Blocks
/// until all that is done. Failures are already worded; `invalid_argument` is the user's.
[[nodiscard]] Result<int> run(const Options& options, const Place& place);

/// What --from asks for, without a run. Returns the exit status; failures are already worded.
[[nodiscard]] Result<int> report_from_files(const ReportOptions& options);

}  // namespace ddrun::bench
