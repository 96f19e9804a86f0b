#pragma once

#include <signal.h>
#include <sys/types.h>

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/process/guard.hpp"

namespace ddrun::process {

struct SignalEvent {
  int signal = 0;
  pid_t sender = 0;  ///< 0: the kernel, as for Ctrl-C
};

/// Signals that ddrun handles as events: all that a user or a scheduler sends, and SIGCHLD. Not those of faults (SEGV,
/// ABRT …), nor HUP, INT and QUIT where the caller ignores them (nohup).
[[nodiscard]] sigset_t handled_signals();

/// Delivers handled_signals() as events on the executor, through a signalfd. They must be blocked in every thread:
/// call block_handled_signals() before the first thread is started. open() fails with `unavailable`.
class SignalSource {
 public:
  using OnSignal = std::function<void(const SignalEvent&)>;
  SignalSource(boost::asio::any_io_executor executor, OnSignal on_signal);
  Result<void> open();

 private:
  void wait();

  boost::asio::posix::stream_descriptor fd_;
  OnSignal on_signal_;
};

void block_handled_signals();

/// Decides whether a repeated ending signal means "kill immediately". A user repeats one to force the end; some
/// programs send two for one request: GNU timeout (to the process and to its group), a closed terminal (SIGHUP from the
/// shell and from the kernel), systemd (SIGTERM, then SIGHUP). Guard, sweeper and agent all use this rule.
class RepeatedSignal {
 public:
  /// A program that sends a signal twice does so within this time.
  static constexpr std::chrono::seconds duplicate_window{1};

  /// To be called with each ending signal; `sender`: 0 for the kernel. True if both this and an earlier one came from
  /// the terminal's keys, or if it is the same signal and `duplicate_window` has passed since the first. Never for
  /// SIGHUP, which no user sends by hand.
  bool forces_kill(int signal, pid_t sender, Clock::time_point now) {
    const bool key = sender == 0 && (signal == SIGINT || signal == SIGQUIT);
    const bool second_key = key && std::exchange(key_pressed_, key_pressed_ || key);
    Clock::time_point& first = first_[static_cast<std::size_t>(signal)];
    const bool known = first != Clock::time_point{};
    if (!known) first = now;
    return second_key || (known && signal != SIGHUP && now - first >= duplicate_window);
  }

 private:
  bool key_pressed_ = false;
  std::array<Clock::time_point, NSIG> first_{};  ///< the epoch: not received
};

/// The agent's input from outside of the job: signals by any route, and the death of guard or sweeper. Slurm, systemd
/// and others signal every process of a job: the copies by guard, sweeper and agent are reported once.
class SignalReceiver {
 public:
  struct Listener {
    /// An ending signal that is repeated without SignalMessage::at_once can be ignored.
    std::function<void(const SignalMessage&)> signal;
    /// SIGCHLD, for this child and perhaps others that have exited after it.
    std::function<void(pid_t first)> child_ended;
    /// `name`: "guard" or "sweeper", which was killed.
    std::function<void(const char* name, pid_t pid)> parent_lost;
  };

  /// `context` is borrowed; open() takes over its descriptors. The listener is called on the executor.
  SignalReceiver(boost::asio::any_io_executor executor, AgentContext& context, Listener listener);

  /// Begins to report, and publishes in the shared state which signals end the job and how long an orderly end may
  /// take. The signals must have been blocked before: see SignalSource. Fails with `unavailable`.
  Result<void> open(const std::set<int>& ending_signals, Milliseconds grace);

 private:
  /// How a signal reached the agent: by the guard, by the sweeper, or sent to the agent itself.
  enum class Route { guard, sweeper, direct };
  void on_direct_signal(const SignalEvent& event);
  void read_guard_messages();
  void watch_sweeper();
  void on_arrival(SignalMessage message, Route route);
  bool is_duplicate(int signal, Route route);

  AgentContext& context_;
  Listener listener_;
  SignalSource direct_signals_;
  boost::asio::posix::stream_descriptor guard_messages_;
  boost::asio::posix::stream_descriptor sweeper_liveness_;
  struct LastArrival {
    Clock::time_point at;
    std::set<Route> routes;
  };
  std::map<int, LastArrival> last_arrivals_;  ///< by signal
  std::map<Route, RepeatedSignal> repeated_signals_;
};

}  // namespace ddrun::process
