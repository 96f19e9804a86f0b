#pragma once

#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "results.hpp"

namespace ddrun::allreduce {

/// About this machine (host, processor, memory, kernel), the library behind the back end, which ranks are where, the
/// clock, and the date in UTC.
[[nodiscard]] std::vector<Fact> facts_of(const collectives::Connected& connected);

/// "ranks 0-3 on a processors 0-7, ranks 4-7 on b processors 0-7", in the order of the first rank of each.
[[nodiscard]] std::string topology_of(const std::vector<collectives::Member>& members);

}  // namespace ddrun::allreduce
