// The rendezvous of a job on one machine.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/rendezvous/find_coordinator.hpp"
#include "ddrun/rendezvous/rendezvous.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/soon.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::soon;
namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {

/// Another process's listener on loopback; its port.
struct OccupiedPort {
  OccupiedPort() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(fd.get(), 1) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
  }
  UniqueFd fd;
  int port = 0;
};

bool can_bind(int port) {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

/// The only member of a job, with workers that fail on demand.
struct Member {
  explicit Member(const LaunchSpec& spec, int workers = 1, std::vector<bool> with_store = {true}) {
    RendezvousOptions options;
    options.spec = &spec;
    options.local_world_size = workers;
    options.host = options.full_host = "a";
    options.with_store = std::move(with_store);
    rendezvous = make_rendezvous(io.get_executor(), std::move(options), [this](const ToAgent& told) {
      if (const auto* begins = std::get_if<RoundBegins>(&told)) round = begins->ranks;
      if (const auto* order = std::get_if<StopOrder>(&told)) stop = *order;
      if (const auto* message = std::get_if<VerdictMessage>(&told)) verdict = *message;
    });
  }
  void join() {
    rendezvous->join();
    hear();
  }
  /// What it was told by now.
  void hear() {
    io.restart();
    io.poll();
  }
  void fail(int code) {
    round.reset();
    Failed failed;
    failed.round = ++number_;
    failed.code = code;
    rendezvous->send(failed);
    rendezvous->send(Stopped{number_});
    hear();
  }

  asio::io_context io;
  std::shared_ptr<Rendezvous> rendezvous;
  std::optional<RankAssignment> round;
  std::optional<StopOrder> stop;
  std::optional<VerdictMessage> verdict;

 private:
  Round number_ = 0;
};

/// As a worker does: in another process, while the member's loop runs.
std::unique_ptr<store::TcpClient> connect_store(Member& member) {
  Result<std::unique_ptr<store::TcpClient>> client;
  const auto work = asio::make_work_guard(member.io);
  std::thread worker([&] {
    const auto port = static_cast<std::uint16_t>(member.round->master_port);
    client = store::TcpClient::connect(member.round->master_addr, port, soon());
    asio::post(member.io, [&] { member.io.stop(); });
  });
  member.io.restart();
  member.io.run();
  worker.join();
  if (!client) FAIL(client.error().message);
  return std::move(*client);
}

}  // namespace

TEST_CASE("each world has a port of its own, also where a worker listens there") {
  const LaunchSpec spec;
  Member member(spec, 300, std::vector<bool>(300, false));
  REQUIRE(member.rendezvous->open());
  const std::vector<int> ports = member.rendezvous->store_ports();
  CHECK(ports.size() == 300);
  CHECK(std::set<int>(ports.begin(), ports.end()).size() == 300);
  CHECK(can_bind(ports.back()));
}

TEST_CASE("every round has an empty store at the same place") {
  LaunchSpec spec;
  spec.restart.max_restarts = 2;
  Member member(spec, 2);
  REQUIRE(member.rendezvous->open());
  member.join();
  int port = 0;
  std::unique_ptr<store::TcpClient> old;
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (attempt > 0) member.fail(1);
    REQUIRE(member.round);
    if (attempt > 0) {
      CHECK(member.round->master_port == port);
      CHECK_FALSE(old->add("late", 1, soon()));  // a client of the last round has no access
    }
    port = member.round->master_port;
    old = connect_store(member);
    CHECK(old->num_keys(soon()).value_or(-1) == 0);
    REQUIRE(old->add("stale", 1, soon()));
  }
}

TEST_CASE("the only machine is never left out") {
  LaunchSpec spec;
  spec.restart.max_restarts = 2;
  spec.rendezvous.node_max_failures = 1;
  Member member(spec);
  REQUIRE(member.rendezvous->open());
  member.join();
  for (int attempt = 0; attempt < 2; ++attempt) {
    member.fail(1);
    CHECK(member.round);
  }
  member.fail(1);
  REQUIRE(member.verdict);
  CHECK(member.verdict->kind == VerdictKind::worker_failed);
}

TEST_CASE("a member of this very process may take what time it needs") {
  LaunchSpec spec;
  spec.stop.grace = Milliseconds{1};
  spec.rendezvous.heartbeat_interval = Milliseconds{1};
  Member member(spec);
  REQUIRE(member.rendezvous->open());
  member.join();
  REQUIRE(member.round);
  member.rendezvous->send(Leave{LeaveKind::signalled, SIGTERM, ""});
  member.hear();
  REQUIRE(member.stop);
  CHECK_FALSE(member.verdict);
  CHECK(member.io.run_one_for(std::chrono::milliseconds(1)) == 0);  // no timer is armed
  member.rendezvous->send(Stopped{1});
  member.hear();
  REQUIRE(member.verdict);
  CHECK(member.verdict->kind == VerdictKind::stopped_by_signal);
}

TEST_CASE("the pause before a restart does not elapse while the agent is paused") {
  LaunchSpec spec;
  spec.restart.max_restarts = 1;
  spec.restart.backoff = Milliseconds{50};
  Member member(spec);
  REQUIRE(member.rendezvous->open());
  member.join();
  member.fail(1);
  CHECK_FALSE(member.round);
  member.rendezvous->set_paused(true);
  member.io.restart();
  CHECK(member.io.run_for(std::chrono::milliseconds(100)) == 1);  // the cancelled timer
  CHECK_FALSE(member.round);
  member.rendezvous->set_paused(false);
  member.io.restart();
  // A timer that fires early is rearmed.
  while (!member.round) REQUIRE(member.io.run_one_for(std::chrono::seconds(20)) == 1);
}

TEST_CASE("the advertised address is one that is listened on") {
  const std::vector<std::string> only_v6{"[::1]:29500"};
  CHECK(reachable_address("127.0.0.1", only_v6) == "::1");
  CHECK(reachable_address("::1", {"127.0.0.1:29500"}) == "127.0.0.1");
  CHECK(reachable_address("::1", only_v6) == "::1");
  CHECK(reachable_address("localhost", only_v6) == "localhost");
}

TEST_CASE("a port in use is an error that names it") {
  const OccupiedPort other;
  LaunchSpec spec;
  SECTION("as an endpoint") { spec.rendezvous.endpoint = "127.0.0.1:" + std::to_string(other.port); }
  SECTION("as a master port") { spec.rendezvous.master_port = other.port; }
  Member member(spec);
  const auto opened = member.rendezvous->open();
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == Errc::unavailable);
  CHECK(opened.error().message.find(std::to_string(other.port)) != std::string::npos);
}

TEST_CASE("without a store the port is left for a worker to listen on") {
  LaunchSpec spec;
  spec.restart.max_restarts = 1;
  Member member(spec, 1, {false});
  REQUIRE(member.rendezvous->open());
  member.join();
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (attempt > 0) member.fail(1);
    REQUIRE(member.round);
    REQUIRE(member.round->master_port > 0);
    CHECK(can_bind(member.round->master_port));
  }
}
