// Runs of a Slurm step on several nodes have one port.

#include <future>

#include "ddrun/bench/place.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::bench;
using namespace std::chrono_literals;

namespace {

Place place_of(int rank, std::uint16_t port, bool of_step = true) {
  Place place;
  place.rank = rank;
  place.size = 2;
  place.master_address = "127.0.0.1";
  place.master_port = port;
  place.port_is_of_step = of_step;
  return place;
}

using Met = Result<Meeting>;

std::future<Met> meeting(const Place& place) {
  return std::async(std::launch::async, [place] { return meet(place, Clock::now() + 30s); });
}

/// Serves at any free port, as a run before the others does.
Meeting first_run() {
  auto met = meet(place_of(0, 0), Clock::now() + 30s);
  REQUIRE(met);
  return std::move(*met);
}

}  // namespace

TEST_CASE("a run waits for the end of the one before it in the same step") {
  auto first = std::make_unique<Meeting>(first_run());
  const std::uint16_t port = first->server->port();
  auto first_one = std::make_unique<Met>(meeting(place_of(1, port)).get());
  REQUIRE(*first_one);
  // Rank 1 has ended and begins anew while rank 0 still writes its reports; then so does rank 0.
  first_one.reset();
  auto second_one = meeting(place_of(1, port));
  auto second_zero = meeting(place_of(0, port));
  CHECK(second_one.wait_for(200ms) == std::future_status::timeout);
  CHECK(second_zero.wait_for(0ms) == std::future_status::timeout);
  first.reset();
  const Met zero = second_zero.get();
  REQUIRE(zero);
  CHECK(zero->server->port() == port);
  const Met one = second_one.get();
  REQUIRE(one);
  REQUIRE(one->client->set("met", "yes", Clock::now() + 10s));
  CHECK(zero->client->get("met", Clock::now() + 10s).value_or("no") == "yes");
}

TEST_CASE("a rank that is there twice is refused at once where the port is somebody's choice") {
  const Meeting first = first_run();
  const std::uint16_t port = first.server->port();
  const Met one = meeting(place_of(1, port, false)).get();
  REQUIRE(one);
  const Met other = meeting(place_of(1, port, false)).get();
  REQUIRE_FALSE(other);
  CHECK(other.error().message.find("another process is rank 1 too") == 0);
  const Met zero = meeting(place_of(0, port, false)).get();
  REQUIRE_FALSE(zero);
  CHECK(zero.error().message.find("cannot serve the store at 127.0.0.1 port ") == 0);
}

TEST_CASE("a rank that is there twice in a run that goes on is told so in the end") {
  const Meeting first = first_run();
  const std::uint16_t port = first.server->port();
  const Met one = meeting(place_of(1, port)).get();
  REQUIRE(one);
  const Met other = meet(place_of(1, port), Clock::now() + 300ms);
  REQUIRE_FALSE(other);
  CHECK(other.error().message.find("another process is rank 1 too") == 0);
}
