#pragma once

#include <signal.h>
#include <sys/types.h>

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>

#include "ddrun/base/result.hpp"

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

}  // namespace ddrun::process
