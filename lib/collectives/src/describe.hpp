#pragma once

#include <cstdint>
#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

/// What all ranks must have alike in a call, as one number besides the count.
[[nodiscard]] std::uint32_t kind_of(const Call& call);

/// "all_reduce of 4 float, sum"; "broadcast of 4 float, root 1"
[[nodiscard]] std::string describe(std::uint32_t kind, std::uint64_t count);

/// Of two ranks that make different calls. `kind` and `count` are those of `rank`.
[[nodiscard]] tl::unexpected<Error> call_mismatch(int rank, std::uint32_t kind, std::uint64_t count, int own_rank,
                                                  const Call& own);

/// Of a send_recv in which `rank` waits for `from`, which sends to `to`.
[[nodiscard]] tl::unexpected<Error> send_recv_mismatch(int rank, int from, int to);

/// Of a send_recv that `rank` has with itself in one direction only.
[[nodiscard]] tl::unexpected<Error> self_send_mismatch(int rank, int to, int from);

}  // namespace ddrun::collectives
