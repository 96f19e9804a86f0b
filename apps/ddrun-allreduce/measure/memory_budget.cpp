#include "measure/memory_budget.hpp"

#include <algorithm>
#include <bit>
#include <fstream>
#include <limits>
#include <string>

#include "ddrun/base/text.hpp"
#include "ddrun/topology/cgroup.hpp"

namespace ddrun::allreduce {

namespace {

constexpr std::uint64_t kDefaultMax = std::uint64_t{128} << 20;
constexpr std::uint64_t kDefaultTotal = std::uint64_t{2} << 30;

}  // namespace

std::uint64_t free_memory() {
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
  std::ifstream info("/proc/meminfo");
  std::string key;
  std::uint64_t kilobytes = 0;
  std::string unit;
  while (info >> key >> kilobytes && std::getline(info, unit)) {
    if (key == "MemAvailable:") bytes = kilobytes << 10U;
  }
  if (const auto limit = topology::memory_limit(); limit && limit->bytes > 0) {
    bytes = std::min(bytes, static_cast<std::uint64_t>(limit->bytes));
  }
  return bytes;
}

Result<std::uint64_t> max_bytes(const Options& options, int ranks) {
  const std::uint64_t buffers = 2 * static_cast<std::uint64_t>(ranks);
  const std::uint64_t free = free_memory();
  if (options.max_bytes) {
    // Buffers are in the memory of GPUs, and what is free there is for the back end to say.
    if (options.backend == collectives::Backend::nccl) return *options.max_bytes;
    if (*options.max_bytes > free / buffers) {
      return fail(Errc::invalid_argument,
                  concat("--maxbytes: ", ranks, " ranks with two buffers of ", *options.max_bytes >> 20U,
                         " MiB each do not fit into the ", free >> 20U, " MiB of memory that are free"));
    }
    return *options.max_bytes;
  }
  const std::uint64_t fits = std::min(kDefaultTotal, free / 2) / buffers;
  return std::max(options.min_bytes, std::min(kDefaultMax, std::bit_floor(fits)));
}

}  // namespace ddrun::allreduce
