#include "roofline.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cases.hpp"
#include "ddrun/collectives/memory.hpp"

namespace ddrun::bench {

namespace {

using collectives::page_bytes;

constexpr std::size_t array_count = 3;
constexpr collectives::MemoryPass copy_pass{"copy", 2};
constexpr collectives::MemoryPass triad_pass{"triad", 3};
constexpr std::array all_passes{copy_pass, triad_pass};

constexpr std::uint64_t min_array_bytes = std::uint64_t{64} << 20U;
constexpr std::uint64_t max_array_bytes = std::uint64_t{256} << 20U;
/// Arrays so many times as large as the last cache leave nothing of themselves in it.
constexpr std::uint64_t times_cache = 4;

/// STREAM's triad (J. McCalpin, 1995).
void triad(double* a, const double* b, const double* c, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] + 3 * c[i];
}

class HostGauge final : public collectives::MemoryGauge {
 public:
  [[nodiscard]] std::string memory() const override { return "host"; }
  [[nodiscard]] std::span<const collectives::MemoryPass> passes() const override;
  [[nodiscard]] Result<std::uint64_t> suitable_bytes(int ranks) const override;
  [[nodiscard]] Result<void> prepare(std::uint64_t bytes) override;
  [[nodiscard]] Result<collectives::MemoryTurn> run(const collectives::MemoryPass& pass, int times) override;

 private:
  collectives::PrivateMemory memory_;
  std::size_t count_ = 0;  ///< of each array's doubles
};

std::span<const collectives::MemoryPass> HostGauge::passes() const { return all_passes; }

Result<std::uint64_t> HostGauge::suitable_bytes(int ranks) const {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const std::uint64_t wanted =
      std::clamp(times_cache * static_cast<std::uint64_t>(std::max(cache, 0L)), min_array_bytes, max_array_bytes);
  const std::uint64_t fits = free_memory() / 4 / (array_count * static_cast<std::uint64_t>(ranks));
  return std::max(std::min(wanted, fits) / page_bytes * page_bytes, page_bytes);
}

Result<void> HostGauge::prepare(std::uint64_t bytes) {
  if (auto got = memory_.allocate(bytes, array_count); !got) return got;
  count_ = bytes / sizeof(double);
  auto* const all = reinterpret_cast<double*>(memory_.data());
  std::fill(all, all + array_count * count_, 1.0);
  return {};
}

Result<collectives::MemoryTurn> HostGauge::run(const collectives::MemoryPass& pass, int times) {
  auto* const a = reinterpret_cast<double*>(memory_.data());
  double* const b = a + count_;
  double* const c = b + count_;
  collectives::MemoryTurn turn;
  turn.start = Clock::now();
  for (int i = 0; i < times; ++i) {
    if (pass.name == copy_pass.name) std::memcpy(a, b, count_ * sizeof(double));
    else triad(a, b, c, count_);
  }
  turn.end = Clock::now();
  return turn;
}

}  // namespace

std::unique_ptr<collectives::MemoryGauge> host_gauge() { return std::make_unique<HostGauge>(); }

}  // namespace ddrun::bench
