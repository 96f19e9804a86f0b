// The coordinator's side of the connections, with agents that know what to do.
#include <sys/wait.h>

#include <atomic>

#include "ddrun/test/catch.hpp"
#include "fixture.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;
using namespace std::chrono_literals;

TEST_CASE("agents join and are told what the coordinator says, with a secret and without") {
  for (const std::string& secret : {the_secret, std::string()}) {
    Fixture f(Fixture::unhurried(), secret);
    CHECK(coordinator_log() == std::vector<std::string>{"join member0 127.0.0.1 ", "join member1 127.0.0.1 "});
    f.check_unharmed();
    f.members[1].close();
    CHECK(coordinator_has_logged("lost member1: connection closed"));
    CHECK(f.notices().empty());
    const auto stats = f.server->stats();
    CHECK(stats.agents == 1);
    CHECK(stats.peak_agents == 2);
    CHECK(stats.joined == 2);
    CHECK(stats.greeting == 0);
    CHECK(stats.messages_in >= 3);
  }
}

TEST_CASE("what an agent says of its machine's addresses arrives, and much of it harms nobody") {
  Fixture f;
  RawAgent agent(f.server->port());
  REQUIRE(agent.greet() == Greeting::done);
  Join join;
  join.host = "many";
  join.agent_id = "many";
  join.own_addresses = {"10.0.0.7", "fd00::7"};
  REQUIRE(agent.say(join));
  REQUIRE(agent.hear_of<Welcome>());
  CHECK(coordinator_has_logged("many has 10.0.0.7 fd00::7"));
  // As many as JOIN may hold.
  RawAgent other(f.server->port());
  REQUIRE(other.greet() == Greeting::done);
  join.host = "most";
  join.own_addresses.assign(10'000, "x");
  REQUIRE(other.say(join));
  REQUIRE(other.hear_of<Welcome>());
  f.check_unharmed();
}

TEST_CASE("agents come by IPv6 as well") {
  Fixture f;
  RawAgent agent(f.server->port(), "::1");
  REQUIRE(agent.greet() == Greeting::done);
  REQUIRE(agent.join("six"));
  REQUIRE(agent.hear_of<Welcome>());
  CHECK(coordinator_has_logged("join six ::1 "));
  f.check_unharmed();
}

TEST_CASE("a port in use is named, and the next candidate is taken") {
  Fixture f;
  CoordinatorServerOptions options;
  options.secret.emplace(the_secret);
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

TEST_CASE("an address that is none is refused") {
  CoordinatorServerOptions options;
  options.addresses = {"node7"};
  const auto refused = CoordinatorServer::start(options);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == Errc::invalid_argument);
}

TEST_CASE("whom the coordinator dismisses is told everything before") {
  Fixture f;
  // It has said more than anybody has read when the connection ends.
  REQUIRE(f.members[0].say(Succeeded{50}));
  REQUIRE(f.members[0].say(Leave{15, ""}));
  for (int i = 0; i < 100; ++i) REQUIRE(f.members[0].say(Pong{1}));
  int events = 0;
  bool verdict = false;
  while (const auto message = f.members[0].hear()) {
    events += std::holds_alternative<EventLine>(*message) ? 1 : 0;
    verdict = verdict || std::holds_alternative<VerdictMessage>(*message);
  }
  CHECK(events == 50);
  CHECK(verdict);
}

TEST_CASE("a server that ends delivers what is queued") {
  Fixture f;
  REQUIRE(f.members[0].say(Failed{.round = 1}));
  REQUIRE(f.members[1].hear_of<Stop>());  // and so it is queued for the first one, too
  std::thread end([&] { f.server.reset(); });
  CHECK(f.members[0].hear_of<Stop>());
  for (auto& member : f.members) {
    while (member.hear()) {
    }
    member.close();
  }
  end.join();
}

TEST_CASE("a server that ends waits for nobody for long") {
  Fixture f;
  const auto begin = Clock::now();
  f.server.reset();  // nobody hangs up
  CHECK(Clock::now() - begin < 10s);
}

TEST_CASE("the end of the job is told to everybody, then to whoever waits for it") {
  std::atomic<int> told{0};
  CoordinatorServerOptions options;
  options.on_done = [&] { ++told; };
  Fixture f(options);
  CHECK_FALSE(f.server->wait_done(Clock::now() + 1ms));
  REQUIRE(f.members[0].say(Abort{}));
  CHECK(f.server->wait_done(soon()));
  for (auto& member : f.members) CHECK(member.hear_of<VerdictMessage>());
  CHECK(comes_true([&] { return told == 1; }));
  CHECK(f.server->wait_done(Clock::now()));
}

TEST_CASE("many jobs are kept apart, and gone with their last agent") {
  CoordinatorServerOptions options;
  options.many_jobs = true;
  Fixture f(options);  // of the job "job"
  std::vector<RawAgent> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back(f.server->port());
    REQUIRE(others.back().greet() == Greeting::done);
    REQUIRE(others.back().join(concat("other", i), "other"));
    REQUIRE(others.back().hear_of<Welcome>());
  }
  CHECK(coordinator_has_logged("join other1 127.0.0.1 other"));
  CHECK(f.server->stats().jobs == 2);
  REQUIRE(others[0].say(Failed{.round = 77}));
  // Both read it: a connection that is closed with something unread is reset, as one is on its way.
  for (auto& other : others) CHECK(other.hear_of<Stop>().value_or(Stop{}).round == 77);
  f.check_unharmed();  // and has not heard of 77
  others.clear();
  CHECK(comes_true([&] { return f.server->stats().jobs == 1; }));
  f.check_unharmed();
}

TEST_CASE("agents are pinged, and who is silent is lost") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(300);
  options.coordinator.heartbeat_misses = 10;  // so that a busy machine does not make us silent
  Fixture f(options);
  bool noticed = false;
  std::thread silent([&] { noticed = coordinator_has_logged("silent member1"); });
  // The other one answers.
  for (int i = 0; i < 12; ++i) {
    const auto ping = f.members[0].hear_of<Ping>();
    REQUIRE(ping);
    REQUIRE(f.members[0].say(Pong{ping->number}));
  }
  silent.join();
  CHECK(noticed);
  const auto log = coordinator_log();
  CHECK(std::find(log.begin(), log.end(), "silent member0") == log.end());
}

TEST_CASE("who takes long for one message is not silent") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(100);
  options.coordinator.heartbeat_misses = 20;  // so that a busy machine does not make us silent
  Fixture f(options);
  RawAgent& agent = f.members[0];
  const std::string bytes = agent.sealed(Stopped{.round = 1, .cause = "", .workers = std::string(200'000, 'w')});
  std::string_view left = bytes;
  const auto silent = [](const std::string& line) {
    const auto log = coordinator_log();
    return std::find(log.begin(), log.end(), line) != log.end();
  };
  // A piece for each ping, which is not answered, until one who says nothing has been given up.
  for (int after = 0; after < 3; after += silent("silent member1") ? 1 : 0) {
    REQUIRE(agent.hear_of<Ping>());
    REQUIRE(left.size() > 2000);
    REQUIRE(agent.send(left.substr(0, 2000)));
    left.remove_prefix(2000);
  }
  REQUIRE(agent.send(left));
  REQUIRE(agent.say(Failed{.round = 2}));
  const auto stop = agent.hear_of<Stop>();
  REQUIRE(stop);
  CHECK(stop->round == 2);
  CHECK_FALSE(silent("silent member0"));
}

TEST_CASE("after the whole process stood still nobody is taken for lost") {
  CoordinatorServerOptions options;
  options.coordinator.heartbeat_interval = Milliseconds(500);
  options.coordinator.heartbeat_misses = 6;
  // The server in a process of its own, which can be stopped.
  int ports[2], logs[2];
  REQUIRE(::pipe(ports) == 0);
  REQUIRE(::pipe(logs) == 0);
  const pid_t server = ::fork();
  if (server == 0) {
    clear_coordinator_log();
    options.secret.emplace(the_secret);
    const auto started = CoordinatorServer::start(options);
    const std::uint16_t port = started ? (*started)->port() : 0;
    (void)!::write(ports[1], &port, sizeof port);
    // Until the member has hung up; then tells what was seen.
    const bool gone = coordinator_has_logged("lost member: connection closed");
    std::string text = gone ? "" : "still there\n";
    for (const auto& line : coordinator_log()) text += line + "\n";
    (void)!::write(logs[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(logs[1]);
  std::uint16_t port = 0;
  REQUIRE(::read(ports[0], &port, sizeof port) == sizeof port);
  std::optional<RawAgent> member(port);
  REQUIRE(member->greet() == Greeting::done);
  REQUIRE(member->join("member"));
  const auto live = [&](int pings) {
    for (int i = 0; i < pings; ++i) {
      const auto ping = member->hear_of<Ping>();
      REQUIRE(ping);
      REQUIRE(member->say(Pong{ping->number}));
    }
  };
  live(2);
  ::kill(server, SIGSTOP);
  int status = 0;
  REQUIRE(::waitpid(server, &status, WUNTRACED) == server);
  ::usleep(6'000'000);  // of silence, twice what would be too much
  ::kill(server, SIGCONT);
  live(4);
  member.reset();
  std::string seen;
  char buffer[4096];
  for (ssize_t got; (got = ::read(logs[0], buffer, sizeof buffer)) > 0;) {
    seen.append(buffer, static_cast<std::size_t>(got));
  }
  CHECK(seen == "join member 127.0.0.1 \nlost member: connection closed\n");
  ::waitpid(server, nullptr, 0);
  for (const int fd : {ports[0], ports[1], logs[0]}) ::close(fd);
}
