#pragma once

#include "options/options.hpp"
#include "start/place.hpp"

namespace ddrun::allreduce {

/// Meets the other ranks, measures what is asked for, and writes table and reports; returns the exit status. Blocks
/// until all that is done. Failures are already worded; `invalid_argument` is the user's.
[[nodiscard]] Result<int> run(const Options& options, const Place& place);

}  // namespace ddrun::allreduce
