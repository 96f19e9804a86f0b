#pragma once

#include <cstdint>

namespace ddrun::worker_env {

/// DDRUN_SEED of `rank` for `--seed n`: output number rank + 1 of the generator SplitMix64 started with n
/// (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014). Modulo 2^64:
///
///     z = n + (rank + 1) * 0x9E3779B97F4A7C15
///     z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
///     z = (z ^ (z >> 27)) * 0x94D049BB133111EB
///     seed = z ^ (z >> 31)
///
/// For one n no two ranks have the same seed (every step can be undone), neighbouring ranks and neighbouring n share
/// no pattern, and the value depends on nothing but n and rank: not on the number of workers, nodes or restarts.
[[nodiscard]] std::uint64_t worker_seed(std::uint64_t n, int rank);

}  // namespace ddrun::worker_env
