#pragma once

#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun {

/// A program that serves until a signal ends it. Make it before anything that has a thread: the thread is to have none
/// of the signals. The server's thread never writes: what it has to say is said by the thread of run(), which does not
/// wait for a reader either.
class Serving {
 public:
  Serving();
  /// For the server, to be called on any thread: says the text as a warning while run() goes on. Never blocks. Where
  /// stderr takes nothing, a few hundred warnings wait for it and the rest is dropped.
  [[nodiscard]] std::function<void(const std::string&)> warn();
  /// Says on stdout where it listens, waits for SIGINT, SIGTERM, SIGHUP or SIGQUIT, and prints `stats` (if there is
  /// such a function) then and for each SIGUSR1. Returns the exit code.
  int run(const std::vector<std::string>& addresses, const std::function<std::string()>& stats);

 private:
  /// Takes `signal_fd`, of which signals are read. Until one ends it; false if `stats` could not be printed.
  bool serve(int signal_fd, const std::function<std::string()>& stats);

  sigset_t signals_;
  boost::asio::io_context io_{1};
};

/// "name number", on a line of its own.
[[nodiscard]] std::string stats_line(std::string_view name, unsigned long long number);

}  // namespace ddrun
