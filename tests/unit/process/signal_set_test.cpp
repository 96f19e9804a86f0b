// Which signals ddrun handles, and that they arrive as events.

#include <signal.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <set>

#include "ddrun/process/signals.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::process;

namespace {

std::set<int> members(const sigset_t& set) {
  std::set<int> found;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (::sigismember(&set, signal) == 1) found.insert(signal);
  }
  return found;
}

/// Ignores a signal while it lives.
struct Ignored {
  explicit Ignored(int signal) : signal_(signal), before_(::signal(signal, SIG_IGN)) {}
  ~Ignored() { ::signal(signal_, before_); }
  Ignored(const Ignored&) = delete;
  Ignored& operator=(const Ignored&) = delete;

 private:
  int signal_;
  void (*before_)(int);
};

}  // namespace

TEST_CASE("signals that users and schedulers send are handled, faults and signals that cannot be caught are not") {
  const auto handled = members(handled_signals());
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH, SIGCHLD}) {
    CAPTURE(signal);
    CHECK(handled.count(signal) == 1);
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP, SIGPIPE}) {
    CAPTURE(signal);
    CHECK(handled.count(signal) == 0);
  }
}

TEST_CASE("hangup and the keyboard signals stay ignored if the caller ignored them") {
  const int signal = GENERATE(SIGHUP, SIGINT, SIGQUIT);
  CAPTURE(signal);
  const auto all = members(handled_signals());
  const Ignored ignored(signal);
  auto expected = all;
  CHECK(expected.erase(signal) == 1);
  CHECK(members(handled_signals()) == expected);
}

TEST_CASE("SIGTERM is handled even if the caller ignored it") {
  const Ignored ignored(SIGTERM);
  CHECK(members(handled_signals()).count(SIGTERM) == 1);
}

TEST_CASE("a signal arrives as an event with its sender") {
  block_handled_signals();
  boost::asio::io_context io;
  std::vector<SignalEvent> events;
  SignalSource source(io.get_executor(), [&](const SignalEvent& event) { events.push_back(event); });
  REQUIRE(source.open());
  ::kill(::getpid(), SIGUSR1);
  ::kill(::getpid(), SIGTERM);
  while (events.size() < 2) io.run_one_for(std::chrono::seconds(20));
  // The kernel hands out pending signals in order of their numbers.
  CHECK(events[0].signal == SIGUSR1);
  CHECK(events[1].signal == SIGTERM);
  for (const auto& event : events) {
    CHECK(event.sender == ::getpid());
  }
}
