// An agent's reaction to an invalid OPEN.
#include <boost/asio/io_context.hpp>

#include "ddrun/rendezvous/rendezvous.hpp"
#include "ddrun/test/catch.hpp"
#include "fixture.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;
using namespace std::chrono_literals;

namespace {

/// Its reply to the coordinator after joining that job.
std::string reply_to_open(const std::string& job) {
  Fixture f;
  LaunchSpec spec;
  spec.rendezvous.min_nodes = spec.rendezvous.max_nodes = 2;
  spec.rendezvous.backend = "c10d";
  spec.rendezvous.endpoint = concat("127.0.0.1:", f.server->port());
  spec.rendezvous.is_host = false;
  spec.rendezvous.id = job;
  RendezvousOptions options;
  options.spec = &spec;
  options.host = "node";
  options.secret = std::move(*Secret::from_text(test_secret));
  std::string begun;
  boost::asio::io_context context;
  const auto member = make_rendezvous(context.get_executor(), std::move(options), [&](const ToAgent& told) {
    if (std::holds_alternative<RoundBegins>(told)) begun = "a round has begun";
  });
  REQUIRE(member->open());
  member->join();
  for (const auto end = soon(); Clock::now() < end && begun.empty();) {
    context.restart();
    context.run_one_for(20ms);
    for (const std::string& line : coordinator_log()) {
      if (line.starts_with("gave up: ")) return line;
    }
  }
  return begun;
}

}  // namespace

TEST_CASE("the store of a round is not opened without allowed addresses") {
  CHECK(reply_to_open("no-address") ==
        "gave up: the worker store on node: the coordinator does not say which machines may use it");
}

TEST_CASE("the store of a round is not opened at an address that means nothing to other machines") {
  CHECK(
      reply_to_open("link-local") ==
      "gave up: the worker store on node: no address is known by which the other machines reach this one but fe80::1, "
      "which means nothing without an interface; give one (--local-addr), or the endpoint by another");
}
