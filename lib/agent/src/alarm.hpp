#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "ddrun/base/duration.hpp"

namespace ddrun::agent {

/// One timer whose owner outlives the event loop. Setting it anew replaces what was waited for.
class Alarm {
 public:
  explicit Alarm(boost::asio::any_io_executor executor) : timer_(std::move(executor)) {}

  template <class OnExpiry>
  void set(Deadline at, OnExpiry on_expiry) {
    timer_.expires_at(at);
    timer_.async_wait([this, on_expiry = std::move(on_expiry)](const boost::system::error_code& ec) {
      // One that was on its way when the timer was set anew is not the one that is waited for.
      if (!ec && Clock::now() >= timer_.expiry()) on_expiry();
    });
  }
  void cancel() { timer_.cancel(); }

 private:
  boost::asio::steady_timer timer_;
};

}  // namespace ddrun::agent
