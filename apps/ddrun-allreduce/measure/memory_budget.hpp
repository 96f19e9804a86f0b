#pragma once

#include <cstdint>

#include "ddrun/base/result.hpp"
#include "options/options.hpp"

namespace ddrun::allreduce {

/// The last size to run, for `ranks` ranks on this machine with two buffers each.
///
/// Asked for: that, or `invalid_argument` if the machine (or our cgroup) does not have the memory: better than an
/// out-of-memory kill of some innocent. Not asked for: 128 MiB, but all buffers together stay below half of what
/// is free and below 2 GiB, so that many ranks on a small machine still are a quick test.
[[nodiscard]] Result<std::uint64_t> max_bytes(const Options& options, int ranks);

/// Bytes that this machine, and our cgroup, could still give away.
[[nodiscard]] std::uint64_t free_memory();

}  // namespace ddrun::allreduce
