// A question to all machines over real connections, with the real coordinator.
#include "ddrun/rendezvous/coordinator_server.hpp"
#include "ddrun/test/catch.hpp"
#include "linked_agent.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using namespace ddrun::test;

namespace {

constexpr std::size_t max_part = std::size_t{32} << 10U;
constexpr Milliseconds heartbeat{20};

Join join_of(const std::string& host) {
  Join join;
  join.job_id = "job";
  join.host = join.agent_id = host;
  join.settings = {{"exit_skew_ms", ""},      {"grace_ms", "1000"},       {"join_timeout_ms", "60000"},
                   {"last_call_ms", "0"},     {"max_nodes", "3"},         {"max_restarts", "0"},
                   {"min_nodes", "3"},        {"node_max_failures", "0"}, {"restart_backoff_ms", "0"},
                   {"restart_window_ms", ""}, {"same_cause", "0"}};
  return join;
}

AgentLinkOptions options_of(const std::string& host) {
  AgentLinkOptions options;
  options.secret.emplace(test_secret);
  options.join = join_of(host);
  return options;
}

/// All parts of that host.
std::string text_of(const std::vector<Page>& pages, const std::string& host) {
  std::string text;
  for (const Page& page : pages) {
    CHECK(page.part.size() <= max_part);
    if (page.host == host) text += page.part;
  }
  return text;
}

}  // namespace

TEST_CASE("an answer of 4 MiB reaches all that ask, in short parts, and heartbeats go on") {
  CoordinatorServerOptions options;
  options.secret.emplace(test_secret);
  options.coordinator.heartbeat_interval = heartbeat;
  options.coordinator.heartbeat_misses = 250;  // tolerates a busy machine
  const auto server = CoordinatorServer::start(options).value();
  const std::vector<Endpoint> at{{"127.0.0.1", server->port()}};

  RawAgent raw(server->port());
  REQUIRE(raw.handshake() == HandshakeState::done);
  REQUIRE(raw.send_message(join_of("a")));
  REQUIRE(raw.wait_for<Welcome>());
  Agent asks(at, options_of("b")), answers(at, options_of("c"));
  for (Agent* agent : {&asks, &answers}) REQUIRE(agent->link->start());
  const auto open = raw.wait_for<Open>();
  REQUIRE(open);
  REQUIRE(raw.send_message(Opened{open->round, 29'500}));
  REQUIRE(raw.wait_for<Start>());
  for (Agent* agent : {&asks, &answers}) REQUIRE(agent->wait_for<Start>());

  std::string text;
  for (int i = 0; text.size() < std::size_t{4} << 20U; ++i) text += concat(i, ' ');
  text.resize(std::size_t{4} << 20U);
  asks.link->send(Ask{7});
  REQUIRE(raw.send_message(Ask{8}));
  const auto look = answers.wait_for<Look>();
  REQUIRE(look);
  answers.link->send(Stacks{look->number, true, text});
  asks.link->send(Stacks{look->number});
  REQUIRE(raw.send_message(Stacks{look->number}));

  const auto began = Clock::now();
  std::vector<Page> pages;
  std::size_t unconfirmed = 0, pings = 0;
  while (pages.empty() || pages.back().node_rank >= 0) {
    const auto message = raw.receive();
    REQUIRE(message);
    if (const auto* page = std::get_if<Page>(&*message)) {
      pages.push_back(*page);
      unconfirmed += page->part.size();
      CHECK(unconfirmed <= max_part);
    } else if (const auto* ping = std::get_if<Ping>(&*message)) {
      REQUIRE(raw.send_message(Pong{ping->number}));
      unconfirmed = 0;
      ++pings;
    }
  }
  CHECK(pages.back().missing.empty());
  CHECK(text_of(pages, "c") == text);
  // One for each part, and the heartbeats.
  const auto beats = static_cast<std::size_t>((Clock::now() - began) / heartbeat);
  CHECK(pings >= text.size() / max_part - 1 + beats / 2);

  pages.clear();
  while (pages.empty() || pages.back().node_rank >= 0) {
    auto page = asks.wait_for<Page>();
    REQUIRE(page);
    pages.push_back(std::move(*page));
  }
  CHECK(pages.back().missing.empty());
  CHECK(text_of(pages, "c") == text);

  // All of them are still members.
  REQUIRE(raw.send_message(Failed{.round = open->round}));
  CHECK(raw.wait_for<Stop>());
  for (Agent* agent : {&asks, &answers}) CHECK(agent->wait_for<Stop>());
}
