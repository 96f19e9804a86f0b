#pragma once

#include <chrono>

#include "ddrun/base/duration.hpp"

namespace ddrun::lease {

/// CLOCK_BOOTTIME: includes suspend, as the engine's clock does, and cannot be set.
struct FenceClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<FenceClock>;
  static constexpr bool is_steady = true;
  static time_point now() noexcept;
};

/// A leader steps down this long before its lease expires, to allow for clock drift.
[[nodiscard]] constexpr Milliseconds fence_margin(Milliseconds ttl) { return ttl / 10; }

}  // namespace ddrun::lease
