#include "ddrun/base/exit_status.hpp"

#include <signal.h>

#include "ddrun/test/catch.hpp"

using namespace ddrun;

TEST_CASE("exit 9 and SIGKILL never look alike") {
  const ExitStatus exited = exit_status_from_wait(9 << 8);
  const ExitStatus killed = exit_status_from_wait(SIGKILL);
  CHECK(exited == ExitStatus(Exited{9}));
  CHECK(killed == ExitStatus(Signaled{SIGKILL, false}));
  CHECK(shell_code(exited) == 9);
  CHECK(shell_code(killed) == 137);
  CHECK(describe(exited) == "exited with code 9");
  CHECK(describe(killed) == "killed by SIGKILL");
}

TEST_CASE("signals have names, also real-time ones") {
  CHECK(signal_name(SIGTERM) == "SIGTERM");
  CHECK(signal_name(SIGRTMIN + 3) == "SIGRTMIN+3");
  CHECK(signal_number("term") == SIGTERM);
  CHECK(signal_number("SIGUSR1") == SIGUSR1);
  CHECK(signal_number("15") == 15);
  CHECK(signal_number("SIGRTMIN+3") == SIGRTMIN + 3);
  CHECK(signal_number("NOPE") == 0);
  CHECK(signal_number("0") == 0);
}

TEST_CASE("a core dump is reported") {
  const std::string text = describe(Signaled{SIGSEGV, true});
  CHECK(text.find("SIGSEGV") != std::string::npos);
  CHECK(text.find("core dumped") != std::string::npos);
}
