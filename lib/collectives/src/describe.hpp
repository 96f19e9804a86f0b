#pragma once

#include <cstdint>
#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

/// The properties of a call that must be equal on all ranks except the count, as one number.
[[nodiscard]] std::uint32_t kind_of(const Call& call);

/// "all_reduce of 4 float, sum"; "broadcast of 4 float, root 1"
[[nodiscard]] std::string describe(std::uint32_t kind, std::uint64_t count);

/// Two ranks make different calls. `kind` and `count` are those of `rank`.
[[nodiscard]] tl::unexpected<Error> call_mismatch(int rank, std::uint32_t kind, std::uint64_t count, int own_rank,
                                                  const Call& own);

/// In a send_recv, `rank` receives from `from`, which sends to `to`.
[[nodiscard]] tl::unexpected<Error> send_recv_mismatch(int rank, int from, int to);

/// In a send_recv, `rank` sends to itself but receives from another rank, or the reverse.
[[nodiscard]] tl::unexpected<Error> self_send_mismatch(int rank, int to, int from);

}  // namespace ddrun::collectives
