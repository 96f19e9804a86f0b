#pragma once

#include <signal.h>

#include <functional>
#include <string>
#include <vector>

/// A program that serves until a signal ends it. Make it before anything that has a thread: the thread is to have none
/// of the signals.
class Serving {
 public:
  Serving();
  /// Says on stdout where it listens, waits for SIGINT, SIGTERM, SIGHUP or SIGQUIT, and prints `stats` (if there is
  /// such a function) then and for each SIGUSR1. Returns the exit code.
  int run(const std::vector<std::string>& addresses, const std::function<std::string()>& stats);

 private:
  sigset_t signals_;
};

/// "name number", on a line of its own.
[[nodiscard]] std::string stats_line(std::string_view name, unsigned long long number);
