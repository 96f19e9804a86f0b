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

/// Goes on while the machine sleeps, as the engine's clock does, and cannot be set.
struct FenceClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<FenceClock>;
  static constexpr bool is_steady = true;
  static time_point now() noexcept;
};

/// How long before the end of its time to live a leader steps down: for clocks that do not run alike.
[[nodiscard]] constexpr Milliseconds fence_margin(Milliseconds ttl) { return ttl / 10; }

/// Until when a lease may be used, and who is told when that is over.
class Fence {
 public:
  /// Fails with `unavailable` where descriptors run out.
  [[nodiscard]] static Result<std::unique_ptr<Fence>> make(const boost::asio::any_io_executor& executor,
                                                           std::function<void()> on_expired);
  ~Fence();
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

  /// A lease that was renewed by a request sent at `sent` may be used until `ttl` less the margin after that. Does not
  /// shorten what there is.
  void renewed(FenceClock::time_point sent, Milliseconds ttl);
  /// There is no lease any more.
  void drop();

  /// By any thread.
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
