#include "ddrun/worker_env/seed.hpp"

namespace ddrun::worker_env {

std::uint64_t worker_seed(std::uint64_t n, int rank) {
  std::uint64_t z = n + (static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

}  // namespace ddrun::worker_env
