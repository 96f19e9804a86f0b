// A new round is empty, and clients of the last one are disconnected.
#include <atomic>
#include <thread>

#include "ddrun/test/store.hpp"
#include "ddrun/test/store_wire.hpp"

using namespace ddrun;
using namespace ddrun::store;
using namespace ddrun::test;
using namespace std::chrono_literals;

TEST_CASE("a new round keeps the port and deletes the keys") {
  auto server = started();
  const auto port = server->port();
  for (int round = 0; round < 5; ++round) {
    auto client = connected(server->port());
    CHECK(client->num_keys(soon()).value_or(-1) == 0);
    REQUIRE(client->set("stale", "1", soon()));
    CHECK(client->num_keys(soon()).value_or(-1) == 1);
    REQUIRE(server->new_round());
    CHECK(server->port() == port);
  }
}

TEST_CASE("clients of the last round are disconnected") {
  auto server = started();
  auto old = connected(server->port());
  RawClient waiting(server->port());
  REQUIRE(waiting.send(greeting() + unhex("06") + number(1) + field("never")));
  REQUIRE(server->new_round());
  CHECK(waiting.closed_by_server());
  const auto set = old->add("n", 1, soon());
  REQUIRE_FALSE(set);
  CHECK(set.error().code == Errc::connection_lost);
  const auto again = old->num_keys(soon());
  REQUIRE_FALSE(again);
  CHECK(again.error().code == Errc::connection_lost);
  CHECK(connected(server->port())->num_keys(soon()).value_or(-1) == 0);
}

TEST_CASE("a wait of the last round does not see keys of the new one") {
  auto server = started();
  auto old = connected(server->port());
  std::atomic<bool> ended{false};
  Result<std::string> got = "none";
  std::thread thread([&] {
    got = old->get("k", Clock::now() + 60s);
    ended = true;
  });
  REQUIRE(server->new_round());
  auto fresh = connected(server->port());
  REQUIRE(fresh->set("k", "new", soon()));
  thread.join();
  // Its wait may begin before or after the new round: either way it must not see the new value.
  REQUIRE_FALSE(got);
  CHECK(got.error().code == Errc::connection_lost);
}

TEST_CASE("a client that connected before the round began has no effect in it") {
  auto server = started();
  // Faster than the server accepts: some of these are in its queue, with their requests, when the round begins.
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<RawClient> clients;
    for (int i = 0; i < 50; ++i) {
      clients.emplace_back(server->port());
      clients.back().send(greeting() + unhex("01") + field("stale") + field("x"));
    }
    REQUIRE(server->new_round());
    for (auto& client : clients) {
      client.send(greeting() + unhex("01") + field("stale too") + field("x"));
    }
    auto fresh = connected(server->port());
    REQUIRE(fresh->num_keys(soon()).value_or(-1) == 0);
    for (auto& client : clients) REQUIRE(client.closed_by_server());
    REQUIRE(fresh->num_keys(soon()).value_or(-1) == 0);
  }
}

TEST_CASE("rounds change while clients connect, set keys and disconnect") {
  auto server = started();
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      while (!stop) {
        auto client = TcpClient::connect("127.0.0.1", server->port(), Clock::now() + 1s);
        for (int i = 0; client && i < 20; ++i) {
          if (!(*client)->set("noise", "x", soon()) || !(*client)->get("noise", soon())) break;
        }
      }
    });
  }
  int bad = 0;
  for (int round = 0; round < 50; ++round) {
    if (!server->new_round()) ++bad;
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  CHECK(bad == 0);
  REQUIRE(server->new_round());
  CHECK(connected(server->port())->num_keys(soon()).value_or(-1) == 0);
}
