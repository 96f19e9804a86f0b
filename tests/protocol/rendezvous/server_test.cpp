// The coordinator's side of connections, with well-behaved agents.
#include <atomic>

#include "ddrun/test/catch.hpp"
#include "fixture.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;
using namespace std::chrono_literals;

TEST_CASE("a port in use is named, and the next candidate is taken") {
  Fixture f;
  CoordinatorServerOptions options;
  options.secret.emplace(test_secret);
  options.ports = {f.server->port()};
  const auto refused = CoordinatorServer::start(options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Errc::unavailable);
  CHECK(refused.error().message.find(concat("port ", f.server->port(), " is in use")) != std::string::npos);
  options.ports.push_back(f.server->port());
  CHECK(CoordinatorServer::start(options).error().message.find("are all in use") != std::string::npos);
  options.ports.push_back(0);
  const auto started = CoordinatorServer::start(options);
  REQUIRE(started);
  CHECK((*started)->port() != f.server->port());
  CHECK((*started)->addresses().front() == concat("0.0.0.0:", (*started)->port()));
}

TEST_CASE("a dismissed agent gets all its messages before the close") {
  Fixture f;
  // More is queued than was read when the connection ends.
  REQUIRE(f.members[0].send_message(Succeeded{50}));
  REQUIRE(f.members[0].send_message(Leave{LeaveKind::signalled, 15}));
  for (int i = 0; i < 100; ++i) REQUIRE(f.members[0].send_message(Pong{1}));
  int events = 0;
  bool verdict = false;
  while (const auto message = f.members[0].receive()) {
    events += std::holds_alternative<Log>(*message) ? 1 : 0;
    verdict = verdict || std::holds_alternative<VerdictMessage>(*message);
  }
  CHECK(events == 50);
  CHECK(verdict);
}

TEST_CASE("a server that ends delivers what is queued") {
  Fixture f;
  REQUIRE(f.members[0].send_message(Failed{.round = 1}));
  REQUIRE(f.members[1].wait_for<Stop>());  // so it is queued for the first one, too
  std::thread end([&] { f.server.reset(); });
  CHECK(f.members[0].wait_for<Stop>());
  for (auto& member : f.members) {
    while (member.receive()) {
    }
    member.close();
  }
  end.join();
}

TEST_CASE("a server that ends waits for a bounded time") {
  Fixture f;
  const auto begin = Clock::now();
  f.server.reset();  // no peer closes
  CHECK(Clock::now() - begin < 10s);
}

TEST_CASE("the end of the job is reported after all agents have been notified") {
  std::atomic<int> notices_seen{0};
  CoordinatorServerOptions options;
  options.on_done = [&] { ++notices_seen; };
  Fixture f(options);
  REQUIRE(f.members[0].send_message(Leave{LeaveKind::cannot_go_on}));
  for (auto& member : f.members) CHECK(member.wait_for<VerdictMessage>());
  CHECK(wait_until([&] { return notices_seen == 1; }));
}

TEST_CASE("many jobs are kept apart, and gone with their last agent") {
  CoordinatorServerOptions options;
  options.many_jobs = true;
  Fixture f(options);  // of the job "job"
  std::vector<RawAgent> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back(f.server->port());
    REQUIRE(others.back().handshake() == HandshakeState::done);
    REQUIRE(others.back().join(concat("other", i), "other"));
    REQUIRE(others.back().wait_for<Welcome>());
  }
  CHECK(coordinator_has_logged("join other1 127.0.0.1 other"));
  CHECK(f.server->stats().jobs == 2);
  REQUIRE(others[0].send_message(Failed{.round = 77}));
  // Both read it: closing a connection with unread input resets it.
  for (auto& other : others) CHECK(other.wait_for<Stop>().value_or(Stop{}).round == 77);
  f.check_members_unaffected();  // round 77 does not arrive
  others.clear();
  CHECK(wait_until([&] { return f.server->stats().jobs == 1; }));
  f.check_members_unaffected();
}

TEST_CASE("agents are pinged, and a silent one is lost") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(300);
  options.coordinator.heartbeat_misses = 10;  // tolerates a busy machine
  Fixture f(options);
  bool noticed = false;
  std::thread silent([&] { noticed = coordinator_has_logged("silent member1"); });
  // The other one answers.
  for (int i = 0; i < 12; ++i) {
    const auto ping = f.members[0].wait_for<Ping>();
    REQUIRE(ping);
    REQUIRE(f.members[0].send_message(Pong{ping->number}));
  }
  silent.join();
  CHECK(noticed);
  const auto log = coordinator_log();
  CHECK(std::find(log.begin(), log.end(), "silent member0") == log.end());
}

TEST_CASE("a slow message counts as a sign of life") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(100);
  options.coordinator.heartbeat_misses = 20;  // tolerates a busy machine
  Fixture f(options);
  RawAgent& agent = f.members[0];
  const std::string bytes = agent.sealed(Stopped{.round = 1, .workers = std::string(200'000, 'w')});
  std::string_view left = bytes;
  const auto silent = [](const std::string& line) {
    const auto log = coordinator_log();
    return std::find(log.begin(), log.end(), line) != log.end();
  };
  // A piece per ping, without PONG, until a silent member is lost.
  for (int after = 0; after < 3; after += silent("silent member1") ? 1 : 0) {
    REQUIRE(agent.wait_for<Ping>());
    REQUIRE(left.size() > 2000);
    REQUIRE(agent.send(left.substr(0, 2000)));
    left.remove_prefix(2000);
  }
  REQUIRE(agent.send(left));
  REQUIRE(agent.send_message(Failed{.round = 2}));
  const auto stop = agent.wait_for<Stop>();
  REQUIRE(stop);
  CHECK(stop->round == 2);
  CHECK_FALSE(silent("silent member0"));
}
