#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <utility>

#include "ddrun/base/duration.hpp"

namespace ddrun {

/// A one-shot timer that can be paused. set() replaces a pending expiry. The owner must outlive the event loop; use on
/// the executor's thread only.
class Alarm {
 public:
  explicit Alarm(boost::asio::any_io_executor executor) : timer_(std::move(executor)) {}

  void set(Deadline at, std::function<void()> on_expiry) {
    on_expiry_ = std::move(on_expiry);
    armed_ = true;
    if (paused_) remaining_ = at - Clock::now();
    else start(at);
  }
  void cancel() {
    armed_ = false;
    timer_.cancel();
  }
  /// While paused the remaining time does not decrease.
  void set_paused(bool paused) {
    if (std::exchange(paused_, paused) == paused || !armed_) return;
    if (paused) {
      remaining_ = timer_.expiry() - Clock::now();
      timer_.cancel();
    } else {
      start(Clock::now() + remaining_);
    }
  }

 private:
  void start(Deadline at) {
    timer_.expires_at(at);
    timer_.async_wait([this](const boost::system::error_code& ec) {
      // A completion that was queued before the timer was set again is stale.
      if (ec || !armed_ || paused_ || Clock::now() < timer_.expiry()) return;
      armed_ = false;
      std::exchange(on_expiry_, nullptr)();
    });
  }

  boost::asio::steady_timer timer_;
  std::function<void()> on_expiry_;
  bool armed_ = false;
  bool paused_ = false;
  Clock::duration remaining_{};
};

}  // namespace ddrun
