#include "ddrun/process/signals.hpp"

#include <signal.h>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::process;
using namespace std::chrono_literals;

namespace {

constexpr pid_t kernel = 0;
constexpr pid_t user_process = 7;
const Clock::time_point start = Clock::time_point() + 1h;

}  // namespace

TEST_CASE("Ctrl-C twice forces a kill, however quick") {
  RepeatedSignal rule;
  CHECK_FALSE(rule.forces_kill(SIGINT, kernel, start));
  CHECK(rule.forces_kill(SIGINT, kernel, start + 10ms));
}

TEST_CASE("Ctrl-C and then the terminal's other key forces a kill") {
  RepeatedSignal rule;
  CHECK_FALSE(rule.forces_kill(SIGINT, kernel, start));
  CHECK(rule.forces_kill(SIGQUIT, kernel, start + 10ms));
}

TEST_CASE("The same signal forces a kill a second after the first and not before") {
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGUSR1}) {
    RepeatedSignal rule;
    CHECK_FALSE(rule.forces_kill(signal, user_process, start));
    CHECK_FALSE(rule.forces_kill(signal, user_process, start + 999ms));
    CHECK(rule.forces_kill(signal, user_process, start + 1s));
    CHECK(rule.forces_kill(signal, user_process, start + 1001ms));
  }
}

TEST_CASE("The two signals of GNU timeout and of systemd are one request") {
  RepeatedSignal timeout;
  CHECK_FALSE(timeout.forces_kill(SIGTERM, user_process, start));
  CHECK_FALSE(timeout.forces_kill(SIGTERM, user_process, start));
  RepeatedSignal systemd;
  CHECK_FALSE(systemd.forces_kill(SIGTERM, user_process, start));
  CHECK_FALSE(systemd.forces_kill(SIGHUP, user_process, start));
  CHECK_FALSE(systemd.forces_kill(SIGINT, user_process, start + 5s));
}

TEST_CASE("A repeated SIGHUP never forces a kill") {
  RepeatedSignal rule;
  for (const auto after : {0ms, 10ms, 5000ms, 60000ms}) {
    CHECK_FALSE(rule.forces_kill(SIGHUP, kernel, start + after));
    CHECK_FALSE(rule.forces_kill(SIGHUP, user_process, start + after));
  }
}

TEST_CASE("Ctrl-C after another signal counts as the first") {
  RepeatedSignal rule;
  CHECK_FALSE(rule.forces_kill(SIGTERM, user_process, start));
  CHECK_FALSE(rule.forces_kill(SIGINT, kernel, start + 5s));
  CHECK(rule.forces_kill(SIGINT, kernel, start + 6s));
}
