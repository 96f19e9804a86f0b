#pragma once

#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun {

/// Runs a server until a signal. Construct it before any thread, so that threads inherit the blocked signals. Only the
/// thread of run() writes messages, without blocking.
class Serving {
 public:
  Serving();
  /// A callback for the server, thread-safe and non-blocking: shows the text as a warning from run(). If stderr blocks,
  /// a few hundred warnings are queued and the rest is dropped.
  [[nodiscard]] std::function<void(const std::string&)> warn();
  /// Prints the addresses to stdout and blocks until SIGINT, SIGTERM, SIGHUP or SIGQUIT. Prints `stats` (may be empty)
  /// then and for each SIGUSR1. Returns the exit code.
  int run(const std::vector<std::string>& addresses, const std::function<std::string()>& stats);

 private:
  /// Owns `signal_fd`, a signalfd. Returns after an ending signal; false if `stats` could not be printed.
  bool serve(int signal_fd, const std::function<std::string()>& stats);

  sigset_t signals_;
  boost::asio::io_context io_{1};
};

/// The line "name number".
[[nodiscard]] std::string stats_line(std::string_view name, unsigned long long number);

}  // namespace ddrun
