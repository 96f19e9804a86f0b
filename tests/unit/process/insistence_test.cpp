#include "ddrun/process/signals.hpp"

#include <signal.h>

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::process;
using namespace std::chrono_literals;

namespace {

constexpr pid_t kernel = 0;
constexpr pid_t somebody = 7;
const Clock::time_point start = Clock::time_point() + 1h;

}  // namespace

TEST_CASE("Ctrl-C twice is meant, however quick") {
  Insistence rule;
  CHECK_FALSE(rule.is_meant(SIGINT, kernel, start));
  CHECK(rule.is_meant(SIGINT, kernel, start + 10ms));
}

TEST_CASE("Ctrl-C and then the terminal's other key is meant") {
  Insistence rule;
  CHECK_FALSE(rule.is_meant(SIGINT, kernel, start));
  CHECK(rule.is_meant(SIGQUIT, kernel, start + 10ms));
}

TEST_CASE("The same signal is meant a second after the first and not before") {
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT, SIGUSR1}) {
    Insistence rule;
    CHECK_FALSE(rule.is_meant(signal, somebody, start));
    CHECK_FALSE(rule.is_meant(signal, somebody, start + 999ms));
    CHECK(rule.is_meant(signal, somebody, start + 1s));
    CHECK(rule.is_meant(signal, somebody, start + 1001ms));
  }
}

TEST_CASE("GNU timeout and systemd are not taken for a person") {
  Insistence timeout;
  CHECK_FALSE(timeout.is_meant(SIGTERM, somebody, start));
  CHECK_FALSE(timeout.is_meant(SIGTERM, somebody, start));
  Insistence systemd;
  CHECK_FALSE(systemd.is_meant(SIGTERM, somebody, start));
  CHECK_FALSE(systemd.is_meant(SIGHUP, somebody, start));
  CHECK_FALSE(systemd.is_meant(SIGINT, somebody, start + 5s));
}

TEST_CASE("A hang-up is never meant twice") {
  Insistence rule;
  for (const auto after : {0ms, 10ms, 5000ms, 60000ms}) {
    CHECK_FALSE(rule.is_meant(SIGHUP, kernel, start + after));
    CHECK_FALSE(rule.is_meant(SIGHUP, somebody, start + after));
  }
}

TEST_CASE("One Ctrl-C after a program's request is a first one") {
  Insistence rule;
  CHECK_FALSE(rule.is_meant(SIGTERM, somebody, start));
  CHECK_FALSE(rule.is_meant(SIGINT, kernel, start + 5s));
  CHECK(rule.is_meant(SIGINT, kernel, start + 6s));
}
