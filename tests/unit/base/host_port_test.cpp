#include "ddrun/base/address.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;

namespace {

std::string parts(std::string_view text) {
  const auto split = split_host_port(text);
  if (!split) return "none";
  return concat(split->host, " and ", split->port ? concat("'", *split->port, "'") : "no port");
}

}  // namespace

TEST_CASE("host and port are split") {
  CHECK(parts("node0") == "node0 and no port");
  CHECK(parts("node0:29400") == "node0 and '29400'");
  CHECK(parts("node0:") == "node0 and ''");
  CHECK(parts(":29400") == " and '29400'");
  CHECK(parts("10.0.0.1:0") == "10.0.0.1 and '0'");
  CHECK(parts("fd00::1") == "fd00::1 and no port");
  CHECK(parts("[fd00::1]") == "fd00::1 and no port");
  CHECK(parts("[fd00::1]:29400") == "fd00::1 and '29400'");
  CHECK(parts("[fd00::1]:") == "fd00::1 and ''");
  CHECK(parts("") == " and no port");
  for (const char* text : {"[fd00::1", "[", "[fd00::1]29400"}) {
    CAPTURE(text);
    CHECK(parts(text) == "none");
  }
}

TEST_CASE("an IPv6 address with a port is written with brackets") {
  CHECK(host_port_text("node0", 29400) == "node0:29400");
  CHECK(host_port_text("fd00::1", 29400) == "[fd00::1]:29400");
  CHECK(host_port_text("node0", 0) == "node0");
  CHECK(host_port_text("fd00::1", 0) == "[fd00::1]");
}
