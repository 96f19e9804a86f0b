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
#include <string>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/process/guard.hpp"

namespace ddrun::process {

/// A signal and who sent it (0 if the kernel did, for example for Ctrl-C).
struct SignalEvent {
  int signal = 0;
  pid_t sender = 0;
};

/// Signals that ddrun takes as events: all that a user or a cluster sends, SIGCHLD, and none of those that mean a
/// fault of our own (SEGV, ABRT …) or that the user had told us to ignore (nohup).
[[nodiscard]] sigset_t handled_signals();

/// Delivers handled_signals() as events on the executor, through a signalfd. They must be blocked in every thread
/// (block_handled_signals() before any is started).
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

/// Tells a person who repeats a signal that ends the job, and so means "at once", from the programs that ask once but
/// send two: GNU timeout (to the process and to its group), a closed terminal (SIGHUP from the shell and from the
/// kernel), systemd (SIGTERM, then SIGHUP). This rule is here and nowhere else; guard, sweeper and agent follow it.
class RepeatedSignal {
 public:
  /// Programs that send a signal twice do so within this time.
  static constexpr std::chrono::seconds duplicate_window{1};

  /// To be told each ending signal as it comes; `sender`: 0 if the kernel sent it. True if it repeats an earlier one by
  /// intention: both came from the terminal's keys, or both are the same signal and `duplicate_window` lies between the
  /// first and this one. SIGHUP is never repeated by a person.
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
  std::array<Clock::time_point, NSIG> first_{};  ///< the epoch: has not come
};

/// What reaches the agent process from outside of the job: signals, on whichever route they come, and the death of
/// guard or sweeper. Slurm, systemd and others signal every process of a job: guard, sweeper and agent then hear the
/// same one, and it is told once.
class SignalReceiver {
 public:
  struct Listener {
    /// One that ends the job may come again without meaning anything: see SignalMessage::at_once.
    std::function<void(const SignalMessage&)> signal;
    /// SIGCHLD, for this child and perhaps others that have ended after it.
    std::function<void(pid_t first)> child_ended;
    /// `who`: "guard" or "sweeper"; it was killed.
    std::function<void(const char* name, pid_t pid)> parent_lost;
  };

  /// `context` is borrowed; its descriptors are taken. The listener is called on the executor.
  SignalReceiver(boost::asio::any_io_executor executor, AgentContext& context, Listener listener);

  /// From now on all that comes is told, and guard and sweeper know that the agent listens: which signals end the job,
  /// and how long an orderly end may take. The sources must have been blocked before: see SignalSource. Fails with
  /// `unavailable`.
  Result<void> open(const std::set<int>& ending_signals, Milliseconds grace);
  /// Guard and sweeper may know that the agent listens no more.
  void close();

 private:
  /// The route on which a signal came: from the guard, from the sweeper, or straight to us.
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
