#include "roofline.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>

#include "benchmark.hpp"
#include "cases.hpp"
#include "ddrun/base/text.hpp"
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

/// The machine's own memory, as one thread sees it: memcpy() and the triad.
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

using collectives::MemoryGauge;
using collectives::MemoryPass;

constexpr int turn_count = 5;
/// A turn is so many passes as take this time, as starting and ending takes some, too.
constexpr double turn_seconds = 10e-3;
constexpr double max_passes = 200;
/// No more turns after this time: on a machine that does much else, every one is long.
constexpr double max_seconds = 0.2;

double seconds(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

/// Ranks that measure together, and those that wait meanwhile.
class Together {
 public:
  Together(collectives::Communicator& control, MemoryGauge* gauge, Milliseconds timeout)
      : control_(control), gauge_(gauge), timeout_(timeout) {}

  /// Seconds of one pass, in the fastest of some turns, each from the first start to the last end of those who `work`,
  /// which are all on one machine and have one clock.
  Result<double> best(const MemoryPass& pass, bool works) {
    const auto once = turn(pass, works, 1);  // it also warms up
    if (!once) return once;
    const int times = static_cast<int>(std::clamp(turn_seconds / std::max(*once, 1e-9), 1.0, max_passes));
    double best = INFINITY;
    double all = 0;  // the same on all ranks, as are its parts
    for (int i = 0; i < turn_count && all < max_seconds; ++i) {
      const auto took = turn(pass, works, times);
      if (!took) return took;
      best = std::min(best, *took / times);
      all += *took;
    }
    return best;
  }

 private:
  Result<double> turn(const MemoryPass& pass, bool works, int times) {
    if (auto met = control_.barrier(deadline()); !met) return tl::unexpected(met.error());
    std::array<double, 2> limits{-INFINITY, -INFINITY};  // the end, and the start with the other sign
    if (works) {
      const auto mine = gauge_->run(pass, times);
      if (!mine) return tl::unexpected(mine.error());
      limits = {seconds(mine->end), -seconds(mine->start)};
    }
    if (auto told = largest_of_all(control_, limits, deadline()); !told) return tl::unexpected(told.error());
    return limits[0] + limits[1];
  }

  [[nodiscard]] Deadline deadline() const { return Clock::now() + timeout_; }

  collectives::Communicator& control_;
  MemoryGauge* gauge_;
  Milliseconds timeout_;
};

}  // namespace

Result<Roofline> measure_roofline(const collectives::Connected& connected, const Options& options) {
  collectives::Communicator& control = *connected.control;
  const auto rank = static_cast<std::size_t>(control.rank());
  const std::string& host = connected.members[0].host;
  const bool here = connected.members[rank].host == host;
  Roofline roofline;
  roofline.ranks = static_cast<int>(std::count_if(connected.members.begin(), connected.members.end(),
                                                  [&](const auto& one) { return one.host == host; }));
  std::unique_ptr<MemoryGauge> gauge = connected.communicator->memory().gauge();
  if (!gauge) gauge = std::make_unique<HostGauge>();
  roofline.memory = gauge->memory();
  roofline.peak = gauge->peak();

  // As much as is right for the one who has least: ranks may have different devices.
  std::array<double, 1> bytes{-INFINITY};
  if (here) {
    const auto suitable = gauge->suitable_bytes(roofline.ranks);
    if (!suitable) return tl::unexpected(suitable.error());
    bytes[0] = -static_cast<double>(*suitable);
  }
  if (auto told = largest_of_all(control, bytes, Clock::now() + options.op_timeout); !told) {
    return tl::unexpected(told.error());
  }
  roofline.bytes = static_cast<std::uint64_t>(-bytes[0]);
  if (here) {
    if (auto ready = gauge->prepare(roofline.bytes); !ready) return tl::unexpected(ready.error());
  }

  Together together(control, gauge.get(), options.op_timeout);
  for (const MemoryPass& pass : gauge->passes()) {
    const double moved = static_cast<double>(roofline.bytes) * pass.arrays / 1e9;
    const auto one = together.best(pass, rank == 0);
    if (!one) return tl::unexpected(one.error());
    const auto all = roofline.ranks == 1 ? one : together.best(pass, here);
    if (!all) return tl::unexpected(all.error());
    roofline.passes.push_back({std::string(pass.name), moved / *one, moved * roofline.ranks / *all});
  }
  return roofline;
}

}  // namespace ddrun::bench
