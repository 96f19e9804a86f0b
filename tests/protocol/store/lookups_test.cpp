// The store never asks the system's resolver. Its functions are replaced in this program, so that each call is counted.
#include <netdb.h>

#include <atomic>
#include <thread>
#include <vector>

#include "ddrun/store/tcp_client.hpp"
#include "ddrun/store/tcp_server.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/store_wire.hpp"

namespace {
std::atomic<int> lookups{0};
}

extern "C" {
int getaddrinfo(const char*, const char*, const addrinfo*, addrinfo**) {
  ++lookups;
  return EAI_AGAIN;
}
int getnameinfo(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int) {
  ++lookups;
  return EAI_AGAIN;
}
hostent* gethostbyname(const char*) {
  ++lookups;
  return nullptr;
}
hostent* gethostbyaddr(const void*, socklen_t, int) {
  ++lookups;
  return nullptr;
}
int gethostbyname_r(const char*, hostent*, char*, size_t, hostent** result, int*) {
  ++lookups;
  *result = nullptr;
  return 0;
}
int gethostbyaddr_r(const void*, socklen_t, int, hostent*, char*, size_t, hostent** result, int*) {
  ++lookups;
  *result = nullptr;
  return 0;
}
}

using namespace ddrun;
using namespace ddrun::store;
using namespace ddrun::test;
using namespace std::chrono_literals;

TEST_CASE("clients come, speak, are refused and go without one look-up of a name") {
  // The replacement works at all.
  addrinfo* none = nullptr;
  REQUIRE(getaddrinfo("localhost", nullptr, nullptr, &none) != 0);
  REQUIRE(lookups.exchange(0) == 1);

  TcpServerOptions options;
  options.on_refusal = [](const std::string&) {};
  auto server = TcpServer::start(options);
  REQUIRE(server);
  const auto soon = [] { return Clock::now() + 20s; };
  std::vector<std::thread> threads;
  std::atomic<int> met{0};
  for (const char* address : {"127.0.0.1", "localhost", "::1", "::ffff:127.0.0.1"}) {
    threads.emplace_back([&, address] {
      for (int i = 0; i < 25; ++i) {
        auto client = TcpClient::connect(address, (*server)->port(), soon());
        // A machine without IPv6 has two of the four.
        if (!client) return;
        if ((*client)->add("n", 1, soon()) && (*client)->set("k", "v", soon())) ++met;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(met >= 50);
  RawClient refused((*server)->port());
  refused.send(greeting() + unhex("0d 01020304") + unhex("03") + number(10'000));
  CHECK(refused.receive(4).size() == 4);
  CHECK(refused.closed_by_server());
  REQUIRE((*server)->new_round());
  CHECK(lookups == 0);
}
