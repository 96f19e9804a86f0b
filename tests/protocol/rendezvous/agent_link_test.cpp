// The agent's side of connections, against a real server, and against other listeners.
#include <signal.h>

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <numeric>

#include "ddrun/test/catch.hpp"
#include "fixture.hpp"
#include "linked_agent.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// A listening port with a scripted reaction to the first connection.
struct Listener {
  Listener() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(fd, 100) == 0);
    REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
  }
  ~Listener() { ::close(fd); }
  int fd;
  std::uint16_t port;
};

/// A proxy between agent and coordinator that can reset its connections.
class ResettingProxy {
 public:
  explicit ResettingProxy(std::uint16_t to) : to_(to), thread_([this] { run(); }) {}
  ~ResettingProxy() {
    over_ = true;
    thread_.join();
  }
  [[nodiscard]] std::uint16_t port() const { return listener_.port; }
  /// Like a stateful firewall that has lost its connections. Returns when it is done.
  void reset() {
    cut_ = true;
    while (cut_) ::usleep(100);
  }

 private:
  static void reset(int fd) {
    const linger at_once{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ::close(fd);
  }
  void run() {
    int ends[2] = {-1, -1};
    while (!over_) {
      if (cut_) {
        for (int& fd : ends) {
          if (fd >= 0) reset(std::exchange(fd, -1));
        }
        cut_ = false;
      }
      pollfd waiting[3] = {{listener_.fd, POLLIN, 0}, {ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
      ::poll(waiting, 3, 2);
      if ((waiting[0].revents & POLLIN) != 0) {
        const int fd = ::accept(listener_.fd, nullptr, nullptr);
        if (ends[0] >= 0) {
          reset(fd);
          continue;
        }
        ends[0] = fd;
        ends[1] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(to_);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        (void)::connect(ends[1], reinterpret_cast<sockaddr*>(&address), sizeof address);
        continue;
      }
      for (int i = 0; i < 2; ++i) {
        if (ends[i] < 0 || waiting[i + 1].revents == 0) continue;
        char buffer[4096];
        const ssize_t got = ::recv(ends[i], buffer, sizeof buffer, 0);
        if (got > 0) (void)::send(ends[1 - i], buffer, static_cast<std::size_t>(got), MSG_NOSIGNAL);
        else if (got == 0) ::shutdown(ends[1 - i], SHUT_WR);
        if (got <= 0) ::usleep(1000);
      }
    }
    for (const int fd : ends) {
      if (fd >= 0) ::close(fd);
    }
  }

  std::uint16_t to_;
  Listener listener_;
  std::atomic<bool> cut_ = false, over_ = false;
  std::thread thread_;
};

}  // namespace

TEST_CASE("an agent finds its coordinator, joins and sends") {
  for (const std::string& secret : {test_secret, std::string()}) {
    Fixture f(Fixture::slow_heartbeat(), secret);
    Agent agent({{"127.0.0.1", f.server->port()}}, secret);
    agent.link->send(Opened{5, 1});  // before there is a connection
    REQUIRE(agent.link->start());
    REQUIRE(agent.wait_for<Welcome>());
    CHECK(agent.wait_for<Start>().value_or(Start{}).round == 5);
    agent.link->send(Opened{6, 1});
    CHECK(agent.wait_for<Start>().value_or(Start{}).round == 6);
    CHECK_FALSE(agent.lost);
    f.check_members_unaffected();
  }
}

TEST_CASE("an agent finds its coordinator by name and by IPv6") {
  Fixture f;
  for (const char* host : {"localhost", "::1"}) {
    Agent agent({{host, f.server->port()}});
    REQUIRE(agent.link->start());
    CHECK(agent.wait_for<Welcome>());
  }
}

TEST_CASE("an agent connects from the configured address") {
  Fixture f;
  AgentLinkOptions options;
  options.coordinators = {{"127.0.0.1", f.server->port()}};
  options.secret.emplace(test_secret);
  options.join.host = "bound";
  options.local_address = "127.0.0.9";
  boost::asio::io_context context;
  AgentLink link(context.get_executor(), *make_io_context(), std::move(options), {});
  REQUIRE(link.start());
  std::thread thread([&] { context.run_for(20s); });
  CHECK(coordinator_has_logged("join bound 127.0.0.9 "));
  context.stop();
  thread.join();
}

TEST_CASE("an agent waits for a coordinator that comes later, at one of several places") {
  auto f = std::make_unique<Fixture>();
  const auto port = f->server->port();
  f.reset();
  Agent agent({{"no-such-host.invalid", 29400}, {"127.0.0.1", port}});
  REQUIRE(agent.link->start());
  REQUIRE(agent.run_until([&] { return agent.retries.size() >= 2; }));
  CHECK(has(agent.retries[0], "no-such-host.invalid"));
  CHECK(has(agent.retries[1], concat("no process listens on 127.0.0.1:", port)));
  auto options = Fixture::slow_heartbeat();
  options.ports = {port};
  f = std::make_unique<Fixture>(options);
  CHECK(agent.wait_for<Welcome>());
}

TEST_CASE("an agent that is not admitted reports why, at once") {
  Fixture f;
  AgentLinkOptions options;
  options.secret.emplace("another secret than theirs");
  options.secret_file = "/home/me/.config/ddrun/secret";
  Agent agent({{"localhost", f.server->port()}}, options);
  REQUIRE(agent.link->start());
  CHECK(has(agent.end(), concat("coordinator on localhost:", f.server->port(), " (127.0.0.1)")));
  CHECK(has(agent.end(), "another secret"));
  CHECK(has(agent.end(), "scp -p localhost:/home/me/.config/ddrun/secret /home/me/.config/ddrun/secret"));
  CHECK(agent.lost->code == Errc::invalid_argument);
}

TEST_CASE("messages of another job's coordinator are not counted in the session") {
  Fixture other;
  CoordinatorServerOptions options;
  options.coordinator.job_id = "elsewhere";
  options.coordinator.heartbeat_interval = Milliseconds(20);
  options.coordinator.heartbeat_misses = 500;
  Fixture f(options);
  Agent agent({{"127.0.0.1", other.server->port()}, {"127.0.0.1", f.server->port()}}, test_secret, 20s, "elsewhere");
  REQUIRE(agent.link->start());
  REQUIRE(agent.wait_for<Welcome>());
  // It answers about twenty PINGs meanwhile, each with its count of messages.
  Round round = 0;
  for (const auto until = Clock::now() + 400ms; Clock::now() < until;) {
    agent.link->send(Opened{++round, 1});
    REQUIRE(agent.wait_for<Start>().value_or(Start{}).round == round);
  }
  CHECK_FALSE(agent.lost);
}

TEST_CASE("an agent notices a broken connection and a silent coordinator") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(200);
  options.coordinator.heartbeat_misses = 10;
  auto f = std::make_unique<Fixture>(options);
  Agent agent({{"127.0.0.1", f->server->port()}});
  REQUIRE(agent.link->start());
  REQUIRE(agent.wait_for<Welcome>());
  // Beyond the heartbeat limit: pings are answered.
  const auto until = Clock::now() + 2500ms;
  agent.run_until([&] { return Clock::now() > until; });
  CHECK_FALSE(agent.lost);
  f.reset();
  CHECK(has(agent.end(), "coordinator's host"));
  CHECK(has(agent.end(), "broke: connection closed"));
  CHECK(agent.lost->code == Errc::connection_lost);
  CHECK_FALSE(agent.unreachable);  // its process has ended
}

namespace {

/// Accepts one connection, completes the handshake and sends these messages as type and payload. Returns the
/// connection.
int greet(const Listener& listener, const std::vector<std::pair<std::uint8_t, std::string>>& messages) {
  const int fd = ::accept(listener.fd, nullptr, nullptr);
  const HmacKey secret(test_secret);
  CoordinatorHandshake handshake(&secret, random_nonce());
  char buffer[1000];
  while (handshake.state() == HandshakeState::in_progress) {
    std::string_view bytes(buffer,
                           static_cast<std::size_t>(std::max<ssize_t>(::recv(fd, buffer, sizeof buffer, 0), 0)));
    std::string out;
    if (bytes.empty()) break;
    handshake.feed(bytes, out);
    (void)::send(fd, out.data(), out.size(), MSG_NOSIGNAL);
  }
  auto keys = handshake.keys();
  std::string out;
  for (const auto& [type, payload] : messages) keys.sealer.seal(type, payload, out);
  (void)::send(fd, out.data(), out.size(), MSG_NOSIGNAL);
  return fd;
}

std::pair<std::uint8_t, std::string> encoded(const FromCoordinator& message) {
  std::string payload;
  const auto type = encode(message, payload);
  return {type, payload};
}

}  // namespace

TEST_CASE("an agent detects silence, and closes once its owner is done") {
  Listener listener;
  std::atomic<bool> killed = false;
  AgentLinkOptions link;
  link.secret.emplace(test_secret);
  Agent agent({{"127.0.0.1", listener.port}}, std::move(link), 20s, "job", [&] { return !killed.exchange(true); },
              {1h, 100ms});
  int fd = -1;
  std::thread peer([&] { fd = greet(listener, {encoded(Welcome{"a host", 100, 3, "", 0})}); });
  REQUIRE(agent.link->start());
  REQUIRE(agent.wait_for<Welcome>());
  peer.join();
  CHECK(agent.run_until([&] { return killed.load(); }));  // in less than its whole grace
  CHECK(has(agent.end(), "nothing was heard from the coordinator on a host"));
  CHECK(agent.unreachable);
  const auto end_of_it = [&](int flags) {
    char buffer[1000];
    ssize_t got = 0;
    while ((got = ::recv(fd, buffer, sizeof buffer, flags)) > 0) {
    }
    return got == 0;
  };
  CHECK_FALSE(end_of_it(MSG_DONTWAIT));  // closing it would report that the workers are gone
  agent.link.reset();
  CHECK(end_of_it(0));
  ::close(fd);
}

TEST_CASE("a message of an unknown type is skipped by a member") {
  Listener listener;
  Agent agent({{"127.0.0.1", listener.port}});
  const bool welcomed = GENERATE(true, false);
  const auto first =
      welcomed ? encoded(Welcome{"a host", 60'000, 3, "", 0}) : std::pair(std::uint8_t{98}, std::string());
  int fd = -1;
  std::thread peer([&] { fd = greet(listener, {first, {99, "of a later version"}, encoded(Stop{7, false, "", 0})}); });
  REQUIRE(agent.link->start());
  CHECK(agent.wait_for<Stop>().has_value() == welcomed);
  peer.join();
  ::close(fd);
  if (!welcomed) CHECK(has(agent.end(), "a message of the unknown type 98"));
}

TEST_CASE("a link that is closed in order delivers what is queued") {
  Fixture f;
  Agent agent({{"127.0.0.1", f.server->port()}});
  REQUIRE(agent.link->start());
  REQUIRE(agent.wait_for<Welcome>());
  bool closed = false;
  for (int i = 0; i < 300; ++i) agent.link->send(Stopped{1, {}, std::string(100'000, 'w')});
  agent.link->send(Failed{.round = 99});
  agent.link->close([&] { closed = true; }, 20s);
  CHECK(agent.run_until([&] { return closed; }));
  CHECK(f.members[0].wait_for<Stop>().value_or(Stop{}).round == 99);
  CHECK(coordinator_has_logged("lost linked: connection closed"));
  CHECK_FALSE(agent.lost);
}

TEST_CASE("a link may be closed or destroyed at any time") {
  Fixture f;
  for (int i = 0; i < 30; ++i) {
    Agent agent({{i % 2 == 0 ? "127.0.0.1" : "localhost", f.server->port()}});
    if (i > 3) REQUIRE(agent.link->start());
    agent.run_until([&, turns = 0]() mutable { return ++turns > i / 3; });
    bool closed = false;
    if (i % 3 == 0) {
      agent.link->close([&] { closed = true; });
      CHECK(agent.run_until([&] { return closed; }));
    }
    if (i % 5 == 0) agent.link.reset();
  }
  f.check_members_unaffected();
}

TEST_CASE("a message above the limit is sent without its optional texts") {
  Fixture f;
  Agent agent({{"127.0.0.1", f.server->port()}});
  REQUIRE(agent.link->start());
  REQUIRE(agent.wait_for<Welcome>());
  agent.link->send(Stopped{1, {"failure"}, std::string(5'000'000, 'w')});
  agent.link->send(Opened{8, 1});
  CHECK(agent.wait_for<Start>().value_or(Start{}).round == 8);
}

TEST_CASE("a connection that is reset is resumed without lost or repeated messages") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(50);
  options.coordinator.heartbeat_misses = 400;
  Fixture f(options);
  ResettingProxy wire(f.server->port());
  Agent agent({{"127.0.0.1", wire.port()}});
  REQUIRE(agent.link->start());
  REQUIRE(agent.wait_for<Welcome>());
  constexpr Round rounds = 600;
  std::thread firewall([&] {
    for (int i = 0; i < 12; ++i) {
      ::usleep(20'000);
      wire.reset();
    }
  });
  for (Round round = 1; round <= rounds; ++round) {
    agent.link->send(Opened{round, 1});
    if (round % 10 == 0) agent.run_until([&, turns = 0]() mutable { return ++turns > 3; });
  }
  const auto starts = [&] {
    std::vector<Round> started;
    for (const auto& message : agent.messages) {
      if (const auto* start = std::get_if<Start>(&message)) started.push_back(start->round);
    }
    return started;
  };
  CHECK(agent.run_until([&] { return starts().size() >= rounds || agent.lost; }));
  firewall.join();
  // Nothing follows the last one.
  agent.link->send(Opened{rounds + 1, 1});
  CHECK(agent.run_until([&] { return (!starts().empty() && starts().back() == rounds + 1) || agent.lost; }));
  INFO((agent.lost ? agent.lost->message : "not lost") << "; " << join(f.notices(), "; "));
  std::vector<Round> expected(rounds + 1);
  std::iota(expected.begin(), expected.end(), 1);
  CHECK(starts().size() == expected.size());
  CHECK((starts() == expected));
  CHECK(f.server->stats().resumed > 0);
  for (const auto& line : coordinator_log()) CHECK(line.find("lost linked") == std::string::npos);
}

TEST_CASE("a reset with much unsent output is not an orderly close") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(50);
  options.coordinator.heartbeat_misses = 400;
  Fixture f(options);
  ResettingProxy wire(f.server->port());
  Agent agent({{"127.0.0.1", wire.port()}});
  REQUIRE(agent.link->start());
  REQUIRE(agent.wait_for<Welcome>());
  // The kernel reports a reset once: here to one of many pending writes; the next ones get EPIPE, as after an orderly
  // close.
  Round count = 0;
  for (int i = 0; i < 15 && !agent.lost; ++i) {
    for (int burst = 0; burst < 100; ++burst) agent.link->send(Opened{++count, 1});
    const auto resumed = f.server->stats().resumed;
    wire.reset();
    agent.run_until([&] { return f.server->stats().resumed > resumed || agent.lost; });
  }
  INFO((agent.lost ? agent.lost->message : "not lost"));
  CHECK_FALSE(agent.lost);
  CHECK(agent.run_until([&] {
    const auto* start = agent.messages.empty() ? nullptr : std::get_if<Start>(&agent.messages.back());
    return (start != nullptr && start->round == count) || agent.lost;
  }));
}

TEST_CASE("a searching agent reports that no process listens") {
  Agent agent({{"127.0.0.1", 1}, {"::1", 1}});
  REQUIRE(agent.link->start());
  CHECK(agent.run_until([&] { return agent.not_listening; }));
  CHECK_FALSE(agent.lost);
}

TEST_CASE("the workers of an agent with a blocked thread are killed when their grace is over") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(50);
  options.coordinator.heartbeat_misses = 20;
  Fixture f(options);
  std::atomic<int> kills = 0;
  AgentLinkOptions link;
  link.secret.emplace(test_secret);
  // Two of them have children.
  Agent agent({{"127.0.0.1", f.server->port()}}, std::move(link), 20s, "job", [&] { return ++kills < 3; });
  REQUIRE(agent.link->start());
  REQUIRE(agent.wait_for<Welcome>());
  const auto killed = [&](int times, Clock::duration within) {
    for (const auto end = Clock::now() + within; kills < times && Clock::now() < end;) ::usleep(1000);
    return kills == times;
  };
  const Failed kill_all{.round = 1, .by_signal = true, .code = SIGKILL};  // is answered by such a STOP
  // From here on this thread does nothing for the agent.
  SECTION("as its coordinator is gone") {
    f.server.reset();
    CHECK(killed(3, 20s));
  }
  SECTION("after STOP with SIGKILL") {
    agent.link->send(kill_all);
    CHECK(killed(3, 20s));
  }
  SECTION("but not if they have ended in time") {
    agent.link->send(kill_all);
    REQUIRE(agent.wait_for<Stop>());
    agent.link->send(Stopped{1});
    CHECK_FALSE(killed(1, 1s));
  }
}

TEST_CASE("an agent with a blocked thread is not lost, and reports it") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(50);
  options.coordinator.heartbeat_misses = 20;
  Fixture f(options);
  Agent agent({{"127.0.0.1", f.server->port()}});
  REQUIRE(agent.link->start());
  REQUIRE(agent.wait_for<Welcome>());
  // This thread, which would run the callbacks, is busy beyond the heartbeat limit.
  const auto until = Clock::now() + 2s;
  while (Clock::now() < until) ::usleep(10'000);
  CHECK(coordinator_has_logged("stalled linked"));
  agent.link->send(Opened{5, 1});
  CHECK(agent.wait_for<Start>().value_or(Start{}).round == 5);
  CHECK_FALSE(agent.lost);
}
