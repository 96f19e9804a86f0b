#pragma once

#include <string_view>

namespace ddrun::worker_env {

/// A variable by which srun, mpirun and their like tell a process which rank it is. Those that ddrun has got are about
/// ddrun: a worker that believed them would be rank 0 of 1, as all others are.
[[nodiscard]] bool is_scheduler_rank(std::string_view name);

}  // namespace ddrun::worker_env
