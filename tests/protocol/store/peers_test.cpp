// Only clients with permitted addresses are served.
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>

#include <mutex>

#include "ddrun/store/tcp_server.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun;
using namespace ddrun::store;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

sockaddr_in ipv4(const char* text, std::uint16_t port = 0) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  REQUIRE(::inet_pton(AF_INET, text, &address.sin_addr) == 1);
  return address;
}

/// Adds an address to the loopback interface.
bool add_address(const char* alias, const char* text) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strncpy(request.ifr_name, alias, sizeof request.ifr_name - 1);
  const sockaddr_in address = ipv4(text);
  std::memcpy(&request.ifr_addr, &address, sizeof address);
  bool ok = ::ioctl(fd, SIOCSIFADDR, &request) == 0;
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  ok = ok && ::ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  ::close(fd);
  return ok;
}

/// Whether a client with the source address `from` gets a reply.
bool served(std::uint16_t port, const char* from, const char* to = "127.0.0.1") {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in source = ipv4(from), target = ipv4(to, port);
  REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&source), sizeof source) == 0);
  REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&target), sizeof target) == 0);
  const auto request = greeting() + unhex("0d 01020304");
  (void)::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  char reply[4];
  pollfd entry{fd, POLLIN, 0};
  REQUIRE(::poll(&entry, 1, 10'000) == 1);
  const bool answered = ::recv(fd, reply, sizeof reply, MSG_WAITALL) == 4;
  ::close(fd);
  return answered;
}

}  // namespace

TEST_CASE("a list of clients that are no addresses is refused") {
  TcpServerOptions options;
  options.allowed_peers = {"127.0.0.1", "node7"};
  const auto server = TcpServer::start(options);
  REQUIRE_FALSE(server);
  CHECK(server.error().code == Errc::invalid_argument);
  CHECK(server.error().message.find("node7") != std::string::npos);
}

TEST_CASE("only the round's machines and this one are served") {
  // A new network namespace, where addresses can be added: 10.9.0.2 is added too late to count as this machine's.
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    skip("no network namespace can be made here");
  }
  REQUIRE(add_address("lo", "127.0.0.1"));
  REQUIRE(add_address("lo:1", "10.9.0.1"));

  std::mutex mutex;
  std::vector<std::string> refusals;
  TcpServerOptions options;
  options.addresses = {"0.0.0.0"};
  options.on_refusal = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    refusals.push_back(text);
  };
  auto started = TcpServer::start(options);
  REQUIRE(started);
  TcpServer& server = **started;
  REQUIRE(server.new_round({"10.9.0.7"}));
  REQUIRE(add_address("lo:2", "10.9.0.2"));
  REQUIRE(add_address("lo:7", "10.9.0.7"));

  CHECK(served(server.port(), "127.0.0.1"));
  CHECK(served(server.port(), "10.9.0.1", "10.9.0.1"));
  CHECK(served(server.port(), "10.9.0.7", "10.9.0.1"));
  const auto before = server.stats();
  CHECK(before.rejected_peers == 0);
  CHECK(refusals.empty());
  for (int i = 0; i < 100; ++i) CHECK_FALSE(served(server.port(), "10.9.0.2", "10.9.0.1"));
  CHECK(server.stats().rejected_peers == 100);
  CHECK(server.stats().accepted == before.accepted);
  CHECK(served(server.port(), "10.9.0.7", "10.9.0.1"));
  {
    const std::lock_guard lock(mutex);
    CHECK(refusals.size() < 20);
    CHECK(refusals.front().find("10.9.0.2,") != std::string::npos);
  }

  // The next round has another list; an invalid list changes nothing.
  REQUIRE(server.new_round({"::ffff:10.9.0.2"}));
  CHECK(served(server.port(), "10.9.0.2", "10.9.0.1"));
  CHECK_FALSE(server.new_round({"10.9.0.7", "?"}));
  CHECK(served(server.port(), "10.9.0.2", "10.9.0.1"));
  // The same list again for a round without another.
  REQUIRE(server.new_round());
  CHECK(served(server.port(), "10.9.0.2", "10.9.0.1"));
  REQUIRE(server.new_round(std::vector<std::string>{}));
  CHECK(served(server.port(), "10.9.0.2", "10.9.0.1"));
}
