// The agent's side of the connections, against a real server, and against what else may listen on a port.
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>

#include "agent_link.hpp"
#include "ddrun/test/catch.hpp"
#include "fixture.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// A link and all that it says.
struct Agent {
  explicit Agent(std::vector<ddrun::Endpoint> coordinators, const std::string& secret = the_secret,
                 std::chrono::milliseconds patience = 20s, const std::string& job = "job") {
    AgentLinkOptions options;
    options.coordinators = std::move(coordinators);
    if (!secret.empty()) options.secret = secret;
    options.join.host = "linked";
    options.join.job_id = job;
    options.join.agent_id = "linked";
    options.connect_by = Clock::now() + patience;
    AgentLinkCallbacks callbacks;
    callbacks.on_message = [this](const FromCoordinator& message) { messages.push_back(message); };
    callbacks.on_lost = [this](const Error& error) { lost = error; };
    callbacks.on_retry = [this](const std::string& why) { retries.push_back(why); };
    link.emplace(context.get_executor(), std::move(options), std::move(callbacks));
  }

  /// Runs until it is true; false after 20 s.
  template <class Condition>
  bool run_until(Condition condition) {
    for (const auto end = soon(); Clock::now() < end;) {
      if (condition()) return true;
      context.restart();
      context.run_one_for(50ms);
    }
    return false;
  }
  template <class Message>
  std::optional<Message> hear_of() {
    std::optional<Message> wanted;
    run_until([&] {
      while (!wanted && taken < messages.size()) {
        if (const auto* message = std::get_if<Message>(&messages[taken++])) wanted = *message;
      }
      return wanted.has_value() || lost.has_value();
    });
    return wanted;
  }
  std::string end() {
    run_until([&] { return lost.has_value(); });
    return lost ? lost->message : "it did not end";
  }

  boost::asio::io_context context;
  std::vector<FromCoordinator> messages;
  std::size_t taken = 0;
  std::vector<std::string> retries;
  std::optional<Error> lost;
  std::optional<AgentLink> link;
};

/// A port on which somebody listens who does with the first connection as he is told.
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

bool has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  UNSCOPED_INFO("'" << part << "' is not in: " << text);
  return false;
}

}  // namespace

TEST_CASE("an agent finds its coordinator, joins and is heard") {
  for (const std::string& secret : {the_secret, std::string()}) {
    Fixture f(Fixture::unhurried(), secret);
    Agent agent({{"127.0.0.1", f.server->port()}}, secret);
    agent.link->send(Opened{5, 1});  // before there is a connection
    agent.link->start();
    REQUIRE(agent.hear_of<Welcome>());
    CHECK(agent.hear_of<Start>().value_or(Start{}).round == 5);
    agent.link->send(Opened{6, 1});
    CHECK(agent.hear_of<Start>().value_or(Start{}).round == 6);
    CHECK(agent.link->local_address() == "127.0.0.1");
    CHECK(agent.link->peer_address() == "127.0.0.1");
    CHECK(agent.link->coordinator() == concat("127.0.0.1:", f.server->port()));
    CHECK_FALSE(agent.lost);
    f.check_unharmed();
  }
}

TEST_CASE("an agent finds its coordinator by name and by IPv6") {
  Fixture f;
  for (const char* host : {"localhost", "::1"}) {
    Agent agent({{host, f.server->port()}});
    agent.link->start();
    CHECK(agent.hear_of<Welcome>());
  }
}

TEST_CASE("an agent comes from the address that it was given") {
  Fixture f;
  AgentLinkOptions options;
  options.coordinators = {{"127.0.0.1", f.server->port()}};
  options.secret = the_secret;
  options.join.host = "bound";
  options.local_address = "127.0.0.9";
  boost::asio::io_context context;
  AgentLink link(context.get_executor(), std::move(options), {});
  link.start();
  std::thread thread([&] { context.run_for(20s); });
  CHECK(coordinator_has_logged("join bound 127.0.0.9 "));
  context.stop();
  thread.join();
}

TEST_CASE("an agent waits for a coordinator that comes later, at one of several places") {
  CoordinatorServerOptions options;
  options.secret = the_secret;
  std::uint16_t port = 0;
  {
    const auto started = CoordinatorServer::start(options);
    REQUIRE(started);
    port = (*started)->port();
  }
  Agent agent({{"127.0.0.1", 1}, {"127.0.0.1", port}});
  agent.link->start();
  REQUIRE(agent.run_until([&] { return agent.retries.size() >= 4; }));
  CHECK(has(agent.retries[0], "nobody listens on 127.0.0.1:1"));
  CHECK(has(agent.retries[1], concat("nobody listens on 127.0.0.1:", port)));
  options.ports = {port};
  const auto started = CoordinatorServer::start(options);
  REQUIRE(started);
  CHECK(agent.hear_of<Welcome>());
}

TEST_CASE("an agent that finds nobody says where it looked and why that failed") {
  Agent agent({{"127.0.0.1", 1}, {"no-such-host.invalid", 29400}}, the_secret, 700ms);
  const auto begin = Clock::now();
  agent.link->start();
  const auto end = agent.end();
  CHECK(agent.lost->code == Errc::timeout);
  CHECK(has(end, "nobody listens on 127.0.0.1:1"));
  CHECK(has(end, "no-such-host.invalid"));
  CHECK(Clock::now() - begin < 10s);
}

TEST_CASE("an agent that cannot be let in says why, at once") {
  {
    Fixture f;
    Agent agent({{"localhost", f.server->port()}}, "another secret than theirs");
    agent.link->start();
    CHECK(has(agent.end(), concat("coordinator on localhost:", f.server->port(), " (127.0.0.1)")));
    CHECK(has(agent.end(), "another secret"));
    CHECK(has(agent.end(), "--secret-file"));
    CHECK(agent.lost->code == Errc::invalid_argument);
  }
  {
    Fixture f;
    Agent agent({{"127.0.0.1", f.server->port()}}, "");
    agent.link->start();
    CHECK(has(agent.end(), "asks for a secret"));
  }
  {
    Fixture f(Fixture::unhurried(), "");
    Agent agent({{"127.0.0.1", f.server->port()}});
    agent.link->start();
    CHECK(has(agent.end(), "--insecure"));
  }
}

TEST_CASE("an agent tries elsewhere where it is not let in") {
  Fixture other(Fixture::unhurried(), "the secret of another job"), f;
  Agent agent({{"127.0.0.1", other.server->port()}, {"127.0.0.1", f.server->port()}});
  agent.link->start();
  CHECK(agent.hear_of<Welcome>());
  CHECK(agent.link->coordinator() == concat("127.0.0.1:", f.server->port()));
}

TEST_CASE("an agent that meets another job's coordinator looks on, and is told if there is nowhere else") {
  Fixture f;
  Agent agent({{"127.0.0.1", f.server->port()}, {"localhost", f.server->port()}}, the_secret, 20s, "elsewhere");
  agent.link->start();
  const auto refused = agent.hear_of<Refused>();
  REQUIRE(refused);
  CHECK(refused->kind == RefusalKind::other_job);
  CHECK(agent.retries == std::vector<std::string>{"another job is served here"});
}

TEST_CASE("an agent notices who is not a coordinator") {
  const auto answer = [](const std::string& bytes) {
    Listener listener;
    Agent agent({{"127.0.0.1", listener.port}}, the_secret, 3s);
    agent.link->start();
    std::thread peer([&] {
      const int fd = ::accept(listener.fd, nullptr, nullptr);
      (void)::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      char byte;
      while (::recv(fd, &byte, 1, 0) > 0) {
      }
      ::close(fd);
    });
    const auto end = agent.end();
    peer.join();
    return end;
  };
  CHECK(has(answer("HTTP/1.1 400 Bad Request\r\n\r\n"), "is not ddrun"));
  CHECK(has(answer("DDRUN-RV" + unhex("0700 0100 00000000") + std::string(32, 'n')), "speaks version 7"));
  // It has not the secret, but pretends.
  CHECK(
      has(answer("DDRUN-RV" + unhex("0100 0000 00000000") + std::string(64, 'n')), "does not know this job's secret"));
}

TEST_CASE("an agent tries again where somebody hangs up or has no time") {
  const auto retries = [](const std::function<void(int)>& before_hanging_up) {
    Fixture f;
    Listener listener;
    Agent agent({{"127.0.0.1", listener.port}, {"127.0.0.1", f.server->port()}});
    std::thread peer([&] {
      const int fd = ::accept(listener.fd, nullptr, nullptr);
      before_hanging_up(fd);
      ::close(fd);
    });
    agent.link->start();
    CHECK(agent.hear_of<Welcome>());
    peer.join();
    return agent.retries;
  };
  {
    const auto at_once = retries([](int) {});
    REQUIRE(at_once.size() == 1);
    CHECK(has(at_once[0], "hung up before it answered"));
  }
  {
    // As a coordinator does for which the proof comes too late: packets may have been lost on the way.
    const auto later = retries([](int fd) {
      const auto answer = "DDRUN-RV" + unhex("0100 0000 00000000") + std::string(32, 'n');
      (void)::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      char greeting[48 + 32];
      (void)::recv(fd, greeting, sizeof greeting, MSG_WAITALL);
    });
    REQUIRE(later.size() == 1);
    CHECK(has(later[0], "hung up before it let us in"));
  }
}

TEST_CASE("an agent notices a broken connection and a silent coordinator") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(200);
  options.coordinator.heartbeat_misses = 10;
  auto f = std::make_unique<Fixture>(options);
  Agent agent({{"127.0.0.1", f->server->port()}});
  agent.link->start();
  REQUIRE(agent.hear_of<Welcome>());
  // For longer than silence would be borne: pings come and are answered.
  const auto until = Clock::now() + 2500ms;
  agent.run_until([&] { return Clock::now() > until; });
  CHECK_FALSE(agent.lost);
  f.reset();
  CHECK(has(agent.end(), "coordinator's host"));
  CHECK(agent.lost->code == Errc::connection_lost);
}

TEST_CASE("an agent notices that nothing is heard any more") {
  Listener listener;
  Agent agent({{"127.0.0.1", listener.port}});
  std::thread peer([&] {
    const int fd = ::accept(listener.fd, nullptr, nullptr);
    const HmacKey secret(the_secret);
    CoordinatorHandshake handshake(&secret, random_nonce());
    char buffer[1000];
    while (handshake.state() == Greeting::going_on) {
      std::string_view bytes(buffer,
                             static_cast<std::size_t>(std::max<ssize_t>(::recv(fd, buffer, sizeof buffer, 0), 0)));
      std::string out;
      if (bytes.empty()) break;
      handshake.feed(bytes, out);
      (void)::send(fd, out.data(), out.size(), MSG_NOSIGNAL);
    }
    auto keys = handshake.keys();
    std::string payload, out;
    Welcome welcome{"a host", 100, 3, "job"};
    const auto type = encode(FromCoordinator(welcome), payload);
    keys.sealer.seal(type, payload, out);
    (void)::send(fd, out.data(), out.size(), MSG_NOSIGNAL);
    while (::recv(fd, buffer, sizeof buffer, 0) > 0) {
    }
    ::close(fd);
  });
  agent.link->start();
  REQUIRE(agent.hear_of<Welcome>());
  CHECK(has(agent.end(), "nothing was heard from the coordinator on a host"));
  peer.join();
}

TEST_CASE("a link that is closed in order delivers what is queued") {
  Fixture f;
  Agent agent({{"127.0.0.1", f.server->port()}});
  agent.link->start();
  REQUIRE(agent.hear_of<Welcome>());
  bool closed = false;
  for (int i = 0; i < 300; ++i) agent.link->send(Stopped{1, "", std::string(100'000, 'w')});
  agent.link->send(Failed{.round = 99});
  agent.link->close([&] { closed = true; }, 20s);
  CHECK(agent.run_until([&] { return closed; }));
  CHECK(f.members[0].hear_of<Stop>().value_or(Stop{}).round == 99);
  CHECK(coordinator_has_logged("lost linked: connection closed"));
  CHECK_FALSE(agent.lost);
}

TEST_CASE("a link may be closed or destroyed at any time") {
  Fixture f;
  for (int i = 0; i < 30; ++i) {
    Agent agent({{i % 2 == 0 ? "127.0.0.1" : "localhost", f.server->port()}});
    if (i > 3) agent.link->start();
    agent.run_until([&, turns = 0]() mutable { return ++turns > i / 3; });
    bool closed = false;
    if (i % 3 == 0) {
      agent.link->close([&] { closed = true; });
      CHECK(agent.run_until([&] { return closed; }));
    }
    if (i % 5 == 0) agent.link.reset();
  }
  f.check_unharmed();
}

TEST_CASE("a message that is longer than any may be loses what it can do without") {
  Fixture f;
  Agent agent({{"127.0.0.1", f.server->port()}});
  agent.link->start();
  REQUIRE(agent.hear_of<Welcome>());
  agent.link->send(Stopped{1, "cause", std::string(5'000'000, 'w')});
  agent.link->send(Opened{8, 1});
  CHECK(agent.hear_of<Start>().value_or(Start{}).round == 8);
}
