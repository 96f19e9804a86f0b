#pragma once

#include <memory>

#include "ddrun/bench/options.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/memory.hpp"
#include "results.hpp"

namespace ddrun::bench {

/// Measures what the memory that the communicator works on can do, on rank 0's machine. Blocks for about a second;
/// every rank calls it, those of other machines only wait, and rank 0's result names its memory. `unavailable` if there
/// is too little memory, or a device fails.
[[nodiscard]] Result<Roofline> measure_roofline(const collectives::Connected& connected, const Options& options);

/// The machine's own memory, as one thread sees it: memcpy() and the triad.
[[nodiscard]] std::unique_ptr<collectives::MemoryGauge> host_gauge();

}  // namespace ddrun::bench
