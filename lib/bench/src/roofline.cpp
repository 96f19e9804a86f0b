#include "roofline.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "benchmark.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::bench {

namespace {

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
  if (!gauge) gauge = host_gauge();
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
