#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

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

/// Local expiry of a lease, with a timer.
class Fence {
 public:
  /// `on_expired` is called on the executor. Errors: `unavailable` if descriptors run out.
  [[nodiscard]] static Result<std::unique_ptr<Fence>> make(const boost::asio::any_io_executor& executor,
                                                           std::function<void()> on_expired);
  ~Fence();
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

  /// The lease was renewed by a request sent at `sent`: it is held until `ttl` less the margin after that. Never
  /// shortens.
  void renewed(FenceClock::time_point sent, Milliseconds ttl);
  /// The lease is given up.
  void drop();

  /// Thread-safe.
  [[nodiscard]] bool is_held() const {
    const FenceClock::time_point until = until_;
    return until != FenceClock::time_point{} && FenceClock::now() < until;
  }
  [[nodiscard]] Milliseconds remaining() const;

 private:
  struct Timer;
  explicit Fence(std::shared_ptr<Timer> timer) : timer_(std::move(timer)) {}
  void arm();

  std::shared_ptr<Timer> timer_;
  std::atomic<FenceClock::time_point> until_{FenceClock::time_point{}};
};

}  // namespace ddrun::lease
