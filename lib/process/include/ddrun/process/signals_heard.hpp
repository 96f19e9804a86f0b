#pragma once

#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/process/insistence.hpp"
#include "ddrun/process/signal_source.hpp"

namespace ddrun::process {

/// What reaches the agent process from outside of the job: signals, on whichever way they come, and the death of guard
/// or sweeper. Slurm, systemd and others signal every process of a job: guard, sweeper and agent then hear the same
/// one, and it is told once.
class SignalsHeard {
 public:
  struct Listener {
    /// One that ends the job may come again without meaning anything: see SignalMessage::at_once.
    std::function<void(const SignalMessage&)> signal;
    /// SIGCHLD, for this child and perhaps others that have ended after it.
    std::function<void(pid_t first)> child_ended;
    /// `who`: "guard" or "sweeper"; it was killed.
    std::function<void(const char* who, pid_t pid)> parent_lost;
  };

  /// `context` is borrowed; its descriptors are taken. The listener is called on the executor.
  SignalsHeard(boost::asio::any_io_executor executor, AgentContext& context, Listener listener);

  /// From now on all that comes is told, and guard and sweeper know that somebody listens: which signals end the job,
  /// and how long an orderly end may take. The sources must have been blocked before: see SignalSource. Fails with
  /// `unavailable`.
  Result<void> open(const std::set<int>& ending_signals, Milliseconds grace);
  /// Guard and sweeper may know that nobody listens any more.
  void close();

 private:
  /// The way on which a signal came: from the guard, from the sweeper, or straight to us.
  enum class Way { guard, sweeper, own };
  void own_signal(const SignalEvent& event);
  void read_guard_messages();
  void read_sweeper_life();
  void arrived(SignalMessage message, Way way);
  bool is_echo(int signal, Way way);

  AgentContext& context_;
  Listener listener_;
  SignalSource own_;
  boost::asio::posix::stream_descriptor guard_messages_;
  boost::asio::posix::stream_descriptor sweeper_life_;
  struct Heard {
    Clock::time_point at;
    std::set<Way> ways;
  };
  std::map<int, Heard> heard_;  ///< by signal
  std::map<Way, Insistence> insistence_;
};

}  // namespace ddrun::process
