#pragma once

#include "ddrun/bench/options.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "results.hpp"

namespace ddrun::bench {

/// Measures what the memory that the communicator works on can do, on rank 0's machine. Blocks for about a second;
/// every rank calls it, those of other machines only wait, and rank 0's result names its memory. `unavailable` if there
/// is too little memory, or a device fails.
[[nodiscard]] Result<Roofline> measure_roofline(const collectives::Connected& connected, const Options& options);

}  // namespace ddrun::bench
