#include "ddrun/rendezvous/local_rendezvous.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <boost/asio/io_context.hpp>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/soon.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::soon;
namespace asio = boost::asio;
using namespace std::chrono_literals;

namespace {

std::unique_ptr<store::TcpClient> meet(const RankAssignment& ranks) {
  auto client = store::TcpClient::connect(ranks.master_addr, static_cast<std::uint16_t>(ranks.master_port), soon());
  if (!client) FAIL(client.error().message);
  return std::move(*client);
}

/// Somebody else's listener on the loopback; its port.
struct Occupied {
  Occupied() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
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

}  // namespace

TEST_CASE("a round says all that a worker has to know") {
  asio::io_context io;
  LaunchSpec spec;
  spec.role = "trainer";
  spec.restart.max_restarts = 3;
  LocalRendezvous rendezvous(io.get_executor(), spec, 4);
  REQUIRE(rendezvous.open());
  const auto round = rendezvous.next_round(2);
  REQUIRE(round);
  CHECK(round->run_id == rendezvous.run_id());
  CHECK_FALSE(round->run_id.empty());
  CHECK(round->restart_count == 2);
  CHECK(round->max_restarts == 3);
  CHECK(round->world_size == 4);
  CHECK(round->local_world_size == 4);
  CHECK(round->role_world_size == 4);
  CHECK(round->node_count == 1);
  CHECK(round->base_rank == 0);
  CHECK(round->master_addr == "127.0.0.1");
  CHECK(round->master_port > 0);
}

TEST_CASE("every round has an empty store at the same place") {
  asio::io_context io;
  LaunchSpec spec;
  LocalRendezvous rendezvous(io.get_executor(), spec, 2);
  REQUIRE(rendezvous.open());
  int port = 0;
  std::unique_ptr<store::TcpClient> old;
  for (int attempt = 0; attempt < 3; ++attempt) {
    const auto round = rendezvous.next_round(attempt);
    REQUIRE(round);
    if (attempt > 0) {
      CHECK(round->master_port == port);
      CHECK_FALSE(old->add("late", 1, soon()));  // who is left of the last round cannot speak in this one
    }
    port = round->master_port;
    old = meet(*round);
    CHECK(old->num_keys(soon()).value_or(-1) == 0);
    REQUIRE(old->add("stale", 1, soon()));
  }
}

TEST_CASE("a port in use is an error that names it") {
  const Occupied other;
  asio::io_context io;
  LaunchSpec spec;
  SECTION("as an endpoint") { spec.rendezvous.endpoint = "127.0.0.1:" + std::to_string(other.port); }
  SECTION("as a master port") { spec.rendezvous.master_port = other.port; }
  LocalRendezvous rendezvous(io.get_executor(), spec, 1);
  const auto opened = rendezvous.open();
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == Errc::unavailable);
  CHECK(opened.error().message.find(std::to_string(other.port)) != std::string::npos);
}

TEST_CASE("a wrong endpoint is found when opening") {
  asio::io_context io;
  LaunchSpec spec;
  spec.rendezvous.endpoint = "127.0.0.1:none";
  LocalRendezvous rendezvous(io.get_executor(), spec, 1);
  const auto opened = rendezvous.open();
  REQUIRE_FALSE(opened);
  CHECK(opened.error().code == Errc::invalid_argument);
}

TEST_CASE("without a store the port is left for a worker to listen on") {
  asio::io_context io;
  LaunchSpec spec;
  LocalRendezvous rendezvous(io.get_executor(), spec, 1);
  REQUIRE(rendezvous.open(false));
  for (int attempt = 0; attempt < 2; ++attempt) {
    const auto round = rendezvous.next_round(attempt);
    REQUIRE(round);
    REQUIRE(round->master_port > 0);
    CHECK(can_bind(round->master_port));
  }
}
