#include <signal.h>

#include "ddrun/test/catch.hpp"
#include "group_machine.hpp"

using namespace ddrun;
using namespace ddrun::agent;

TEST_CASE("success codes are compared with exit codes only") {
  RestartPolicy named;
  named.success_on = {0, SIGTERM};
  CHECK(is_success(Exited{0}, named));
  CHECK(is_success(Exited{SIGTERM}, named));
  CHECK_FALSE(is_success(Exited{1}, named));
  CHECK_FALSE(is_success(Signaled{SIGTERM, false}, named));
  CHECK_FALSE(is_success(Signaled{0, false}, named));
}
