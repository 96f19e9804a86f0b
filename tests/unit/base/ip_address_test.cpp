#include "ddrun/base/address.hpp"

#include <algorithm>

#include "ddrun/test/catch.hpp"

using namespace ddrun;

namespace {

IpAddress address(std::string_view text) {
  const auto parsed = IpAddress::parse(text);
  if (!parsed) FAIL("not taken for an address: " << text);
  return *parsed;
}

}  // namespace

TEST_CASE("IPv4-mapped addresses equal IPv4 addresses") {
  CHECK(address("10.0.0.1") == address("::ffff:10.0.0.1"));
  CHECK(address("fd00::7") == address("[fd00:0:0::0007]"));
  CHECK(address("fe80::1%eth0") == address("fe80::1"));
  CHECK(address("10.0.0.1") != address("10.0.0.2"));
  CHECK(address("::1") != address("127.0.0.1"));
  CHECK(address("::ffff:10.0.0.1").text() == "10.0.0.1");
  CHECK(address("fd00:0:0::0007").text() == "fd00::7");
}

TEST_CASE("invalid addresses are rejected") {
  for (const char* text : {"", "localhost", "node7", "10.0.0", "10.0.0.256", "10.0.0.1:80", "10.0.0.1%eth0",
                           "[10.0.0.1", "::1::", "[]", " 10.0.0.1", "010.0.0.1x"}) {
    CAPTURE(text);
    CHECK_FALSE(IpAddress::parse(text));
  }
}

TEST_CASE("unspecified addresses") {
  for (const char* text : {"0.0.0.0", "::", "::ffff:0.0.0.0"}) {
    CAPTURE(text);
    CHECK(address(text).is_unspecified());
  }
  CHECK(IpAddress().is_unspecified());
  for (const char* text : {"0.0.0.1", "10.0.0.0", "::1", "fd00::"}) {
    CAPTURE(text);
    CHECK_FALSE(address(text).is_unspecified());
  }
}

TEST_CASE("link-local addresses") {
  for (const char* text : {"fe80::1", "febf::1", "fe80::1%eth0"}) {
    CAPTURE(text);
    CHECK(address(text).is_link_local());
  }
  for (const char* text : {"fec0::1", "fd00::1", "::1", "254.128.0.1"}) {
    CAPTURE(text);
    CHECK_FALSE(address(text).is_link_local());
  }
}

TEST_CASE("own addresses include the loopback") {
  CHECK(address("127.0.0.1").is_loopback());
  CHECK(address("127.9.9.9").is_loopback());
  CHECK(address("::1").is_loopback());
  CHECK(address("::ffff:127.0.0.1").is_loopback());
  CHECK_FALSE(address("128.0.0.1").is_loopback());
  CHECK_FALSE(address("::2").is_loopback());
  const auto own = own_addresses();
  const auto has = [&](const IpAddress& one) { return std::binary_search(own.begin(), own.end(), one); };
  CHECK(has(address("127.0.0.1")));
  CHECK_FALSE(has(address("192.0.2.77")));  // for documentation only: RFC 5737
  CHECK_FALSE(has(address("2001:db8::77")));
}
