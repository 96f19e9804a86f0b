#pragma once

#include <string_view>

namespace ddrun::collectives {

/// What a group does together.
enum class Collective : unsigned char { barrier, all_reduce };

/// "barrier", "all_reduce".
[[nodiscard]] std::string_view name_of(Collective collective);

/// Bus bandwidth divided by algorithm bandwidth for `ranks` ranks, as nccl-tests defines it (doc/PERFORMANCE.md of
/// NVIDIA/nccl-tests): 2 (n - 1) / n for an all-reduce. 0 where nothing has to travel.
[[nodiscard]] double bus_bandwidth_factor(Collective collective, int ranks);

}  // namespace ddrun::collectives
