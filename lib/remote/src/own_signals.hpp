#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/process/signal_source.hpp"

namespace ddrun::remote {

/// What the agent process of the user's ddrun hears of its own machine: signals, whether they come straight to it or
/// through the guard, and the end of guard or sweeper. Lives as long as the event loop.
class OwnSignals {
 public:
  struct Events {
    std::function<void()> on_child;  ///< a child may have ended
    std::function<void(int signal)> on_signal;
    std::function<void(const char* who)> on_parent_lost;
  };
  OwnSignals(const boost::asio::any_io_executor& executor, process::AgentContext& context, Events events);

  /// Signals are events from now on. Takes the pipes of the context. Fails with `unavailable`.
  Result<void> open();

 private:
  void read_guard_messages();
  void arrived(int signal, bool from_guard);

  process::AgentContext& context_;
  Events events_;
  process::SignalSource signals_;
  boost::asio::posix::stream_descriptor guard_messages_;
  boost::asio::posix::stream_descriptor sweeper_life_;
  struct Heard {
    Clock::time_point at;
    bool from_guard = false;
  };
  std::map<int, Heard> heard_;
};

}  // namespace ddrun::remote
