#include "ddrun/base/address.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun;

namespace {

std::string shown(std::string_view address) {
  const auto endpoint = SocketAddress::parse(address, 29500);
  return endpoint ? endpoint->text() : "none";
}

}  // namespace

TEST_CASE("a socket address is an address of either family and a port") {
  CHECK(shown("127.0.0.1") == "127.0.0.1:29500");
  CHECK(shown("::1") == "[::1]:29500");
  CHECK(shown("[::1]") == "[::1]:29500");
  CHECK(shown("::ffff:10.0.0.1") == "[::ffff:10.0.0.1]:29500");
  CHECK(shown("fe80::1%lo") == "[fe80::1]:29500");
  CHECK(shown("fe80::1%7") == "[fe80::1]:29500");
}

TEST_CASE("a name is no socket address and is not looked up") {
  for (const auto* name : {"", "node0", "localhost", "127.1", "1.2.3.4.5", "fe80::1%no-such-interface", "[", "[]"}) {
    CAPTURE(name);
    CHECK(shown(name) == "none");
  }
}

TEST_CASE("localhost is the loopback of both families") {
  const auto endpoints = literal_socket_addresses("localhost", 80);
  REQUIRE(endpoints.size() == 2);
  CHECK(endpoints[0].text() == "127.0.0.1:80");
  CHECK(endpoints[1].text() == "[::1]:80");
  CHECK(literal_socket_addresses("node0", 80).empty());
}

TEST_CASE("wildcard and loopback addresses are recognised") {
  for (const auto* address : {"127.0.0.1", "0.0.0.0", "::1", "::"}) {
    CAPTURE(address);
    CHECK(SocketAddress::parse(address, 0)->is_wildcard_or_loopback());
  }
  for (const auto* address : {"10.0.0.1", "2001:db8::1"}) {
    CAPTURE(address);
    CHECK_FALSE(SocketAddress::parse(address, 0)->is_wildcard_or_loopback());
  }
}
