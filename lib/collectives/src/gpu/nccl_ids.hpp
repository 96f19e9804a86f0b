#pragma once

#include <string>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "gpu/nccl_library.hpp"

namespace ddrun::collectives {

/// Ranks that share one id: with more, NCCL lets them wait their turn; a library that knows one id only has that.
[[nodiscard]] int ranks_per_nccl_id(const nccl::Library& library);

/// Makes the ids, on ranks spread over the group, and hands them to all through the store, with NCCL's version, which
/// must be the same everywhere (`invalid_argument`).
[[nodiscard]] Result<std::vector<nccl::UniqueId>> meet_for_nccl(const Group& group, const nccl::Library& library,
                                                                int ranks_per_id, Deadline deadline);

}  // namespace ddrun::collectives
