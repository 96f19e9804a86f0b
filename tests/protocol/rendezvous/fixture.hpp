#pragma once

#include <mutex>
#include <thread>

#include "ddrun/base/text.hpp"
#include "ddrun/rendezvous/coordinator_server.hpp"
#include "ddrun/test/soon.hpp"
#include "raw_agent.hpp"
#include "scripted_coordinator.hpp"

namespace ddrun::test {

/// A server with a running job of two members, which must not be affected by other connections.
struct Fixture {
  explicit Fixture(rendezvous::CoordinatorServerOptions options = slow_heartbeat(),
                   const std::string& secret = test_secret) {
    clear_coordinator_log();
    if (!secret.empty()) options.secret.emplace(secret);
    options.on_notice = [this](const std::string& text) {
      const std::lock_guard lock(mutex);
      notices_seen.push_back(text);
    };
    auto started = rendezvous::CoordinatorServer::start(options);
    if (!started) FAIL(started.error().message);
    server = std::move(*started);
    for (int i = 0; i < 2; ++i) {
      RawAgent agent(server->port());
      REQUIRE(agent.handshake(secret) == rendezvous::HandshakeState::done);
      REQUIRE(agent.join(concat("member", i)));
      REQUIRE(agent.wait_for<rendezvous::Welcome>());
      members.push_back(std::move(agent));
    }
  }

  /// Members answer pings only within their calls.
  static rendezvous::CoordinatorServerOptions slow_heartbeat() {
    rendezvous::CoordinatorServerOptions options;
    options.coordinator.heartbeat_interval = Milliseconds(60'000);
    return options;
  }

  /// One member fails, and both get STOP. The server is single-threaded, so it has handled all earlier input by then.
  void check_members_unaffected() {
    ++round;
    REQUIRE(members[0].send_message(rendezvous::Failed{.round = round}));
    for (auto& member : members) {
      const auto stop = member.wait_for<rendezvous::Stop>();
      REQUIRE(stop);
      CHECK(stop->round == round);
    }
  }
  std::vector<std::string> notices() {
    const std::lock_guard lock(mutex);
    return notices_seen;
  }
  /// Waits, since a reply may come before its notice. False after 20 s.
  bool has_noticed(const std::string& part) {
    for (const auto end = soon(); Clock::now() < end; ::usleep(1000)) {
      for (const auto& text : notices()) {
        if (text.find(part) != std::string::npos) return true;
      }
    }
    return false;
  }

  // Destroyed first.
  std::mutex mutex;
  std::vector<std::string> notices_seen;
  std::unique_ptr<rendezvous::CoordinatorServer> server;
  std::vector<RawAgent> members;
  rendezvous::Round round = 0;
};

/// Waits for a condition; false after 20 s.
template <class Condition>
bool wait_until(Condition condition) {
  for (const auto end = soon(); Clock::now() < end; ::usleep(1000)) {
    if (condition()) return true;
  }
  return false;
}

}  // namespace ddrun::test
