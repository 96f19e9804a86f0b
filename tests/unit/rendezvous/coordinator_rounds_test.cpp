// How rounds begin, and with which ranks.

#include "codec.hpp"
#include "ddrun/test/catch.hpp"
#include "frames.hpp"
#include "node_ranks.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ip;
using ddrun::test::ScriptedJob;

TEST_CASE("a round of a fixed size begins when all are there") {
  ScriptedJob job(2, 2);
  const LinkId b = job.joins("b");
  CHECK(job.next<Welcome>(b) == Welcome{"a", 1000, 3, "", 0});
  const Waiting waiting = job.next<Waiting>(b);
  CHECK(waiting == Waiting{1, 2, 2, false, "1 more node"});
  const LinkId a = job.joins("a");
  CHECK(job.coordinator().job().round == 1);
  const Open open = job.next<Open>(a);
  CHECK(open.round == 1);
  CHECK(open.address == "10.0.0.2");
  CHECK(open.addresses == std::vector<std::string>{"10.0.0.1", "10.0.0.2"});
  CHECK_FALSE(job.has<Start>(b));
  job.opens(4711);
  const RankAssignment first = job.next<Start>(a).ranks;
  const RankAssignment second = job.next<Start>(b).ranks;
  CHECK(first.node_rank == 0);
  CHECK(first.world_size == 4);
  CHECK(second.node_rank == 1);
  CHECK(second.base_rank == 2);
  CHECK(second.master_addr == "10.0.0.2");
  CHECK(second.master_port == 4711);
  CHECK(second.max_restarts == 3);
}

TEST_CASE("when all have succeeded and stopped all get the verdict") {
  ScriptedJob job(2, 2);
  const LinkId a = job.joins("a");
  const LinkId b = job.joins("b");
  job.opens();
  for (const LinkId link : {a, b}) job.succeeds(link);
  CHECK_FALSE(job.coordinator().job().verdict);
  job.stops(b);
  CHECK_FALSE(job.has<VerdictMessage>(a));
  job.stops(a);
  CHECK(job.next<VerdictMessage>(a).exit_code == 0);
  CHECK(job.next<VerdictMessage>(b).kind == VerdictKind::success);
  CHECK_FALSE(job.coordinator().done());
  job.disconnects(a, "closed");
  job.disconnects(b, "closed");
  CHECK(job.coordinator().done());
  CHECK_FALSE(job.coordinator().next_deadline());
}

TEST_CASE("a failure is followed by a restart until none is left") {
  ScriptedJob job(2, 2, {{"max_restarts", "1"}});
  const LinkId a = job.joins("a");
  const LinkId b = job.joins("b");
  job.opens();
  job.fails(b, 3, 7);
  CHECK(job.next<Stop>(a) ==
        Stop{1, true, "rank 3 on b exited with code 7; restarting all workers (restart 1 of 1)", 0});
  job.stops(a);
  CHECK(job.coordinator().job().round == 1);
  job.stops(b);
  CHECK(job.coordinator().job().round == 2);
  job.opens();
  CHECK(job.next<Start>(b).ranks.restart_count == 0);
  CHECK(job.next<Start>(b).ranks.restart_count == 1);
  job.fails(a, 0, 5);
  CHECK_FALSE(job.next<Stop>(b).another_round);
  job.stops(a, "details");
  job.stops(b);
  const VerdictMessage verdict = job.next<VerdictMessage>(b);
  CHECK(verdict == job.next<VerdictMessage>(a));
  CHECK(verdict.kind == VerdictKind::worker_failed);
  CHECK(verdict.exit_code == 5);
  CHECK(verdict.host == "a");
  CHECK(verdict.rank == 0);
  CHECK(verdict.cause == "details");
  CHECK(verdict.restarts == 1);
  CHECK(verdict.why == "rank 0 on a exited with code 5; no restart is left");
}

TEST_CASE("an elastic round waits for the last call, counted from MIN nodes on") {
  ScriptedJob job(2, 4);
  const LinkId a = job.joins("a");
  job.wait(Milliseconds{60'000});
  const LinkId b = job.joins("b");
  CHECK(job.next<Waiting>(b) == Waiting{2, 2, 4, false, "the end of the last call"});
  job.wait(Milliseconds{20'000});
  const LinkId c = job.joins("c");
  job.wait(Milliseconds{9'999});
  CHECK(job.coordinator().job().round == 0);
  job.wait(Milliseconds{1});
  CHECK(job.coordinator().job().round == 1);
  job.opens();
  for (const LinkId link : {a, b, c}) CHECK(job.next<Start>(link).ranks.node_count == 3);
}

TEST_CASE("the last call begins anew if fewer than MIN are left") {
  ScriptedJob job(2, 3);
  job.joins("a");
  const LinkId b = job.joins("b");
  job.wait(Milliseconds{20'000});
  job.disconnects(b);
  job.wait(Milliseconds{5'000});
  job.joins("c");
  job.wait(Milliseconds{29'000});
  CHECK(job.coordinator().job().round == 0);
  job.wait(Milliseconds{1'000});
  CHECK(job.coordinator().job().round == 1);
}

TEST_CASE("MAX nodes need no last call, and one of no length is none") {
  ScriptedJob full(1, 2);
  full.joins("a");
  full.joins("b");
  CHECK(full.coordinator().job().round == 1);
  ScriptedJob no_last_call(1, 2, {{"last_call_ms", "0"}});
  no_last_call.joins("a");
  CHECK(no_last_call.coordinator().job().round == 1);
}

TEST_CASE("the join timeout names the members") {
  ScriptedJob job(3, 3);
  const LinkId a = job.joins("a");
  job.wait(Milliseconds{100'000});
  const LinkId b = job.joins("b");
  job.wait(Milliseconds{499'999});
  CHECK_FALSE(job.coordinator().job().verdict);
  job.wait(Milliseconds{1});
  for (const LinkId link : {a, b}) {
    const VerdictMessage verdict = job.next<VerdictMessage>(link);
    CHECK(verdict.why ==
          "only 2 of 3 machines came within --join-timeout (600 s): a (10.0.0.1), b (10.0.0.2); look at what ddrun "
          "says on "
          "the others, and whether they reach the coordinator's port on a");
    CHECK(verdict.kind == VerdictKind::launcher_failed);
    CHECK(verdict.exit_code == 125);
  }
}

TEST_CASE("node ranks on the command lines are kept in any order of arrival") {
  for (const auto& order : std::vector<std::vector<int>>{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {2, -1, 1}, {-1, -1, 0}}) {
    ScriptedJob job(3, 3);
    std::vector<LinkId> links;
    for (const int rank : order) links.push_back(job.joins("host" + std::to_string(links.size()), rank));
    job.opens();
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (order[i] >= 0) CHECK(job.next<Start>(links[i]).ranks.node_rank == order[i]);
    }
  }
}

TEST_CASE("a node beyond a fixed size is a spare, and is used when a node is lost") {
  ScriptedJob job(2, 2);
  job.joins("a");
  const LinkId b = job.joins("b");
  const LinkId c = job.joins("c");
  CHECK(job.next<Waiting>(c).spare);
  job.opens();
  job.disconnects(b);
  job.stops(1);
  CHECK(job.coordinator().job().round == 2);
  CHECK(job.node_rank(c) == 1);
  job.opens();
  CHECK(job.next<Start>(c).ranks.restart_count == 1);
}

TEST_CASE("an unused spare ends well when the job does, and with its verdict otherwise") {
  for (const bool well : {true, false}) {
    ScriptedJob job(1, 1, {{"max_restarts", "0"}});
    const LinkId a = job.joins("a");
    const LinkId b = job.joins("b");
    job.opens();
    if (well) job.succeeds(a);
    else job.fails(a, 0, 9);
    job.stops(a);
    if (well) {
      CHECK(job.next<Refused>(b).kind == RefusalKind::not_needed);
      CHECK(job.closed(b));
    } else {
      CHECK(job.next<VerdictMessage>(b).exit_code == 9);
    }
  }
}

TEST_CASE("a newcomer below MAX causes a new round, which costs no restart") {
  ScriptedJob job(1, 2, {{"last_call_ms", "0"}, {"max_restarts", "0"}});
  const LinkId a = job.joins("a");
  job.opens();
  const LinkId b = job.joins("b");
  CHECK(job.next<Waiting>(b) == Waiting{2, 1, 2, false, "the end of the round before"});
  CHECK(job.next<Stop>(a) == Stop{1, true, "b (10.0.0.2) joins", 0});
  job.stops(a);
  CHECK(job.coordinator().job().round == 2);
  job.opens();
  CHECK(job.next<Start>(b).ranks.node_count == 2);
  CHECK(job.coordinator().job().budget.used() == 0);
}

TEST_CASE("once a node has succeeded newcomers are spares") {
  ScriptedJob job(1, 3, {{"last_call_ms", "0"}});
  const LinkId a = job.joins("a");
  job.opens();
  const LinkId b = job.joins("b");
  job.stops(a);
  job.opens();
  job.succeeds(b);
  job.forget_all();
  const LinkId c = job.joins("c");
  CHECK(job.next<Waiting>(c).spare);
  CHECK_FALSE(job.has<Stop>(a));
}

TEST_CASE("a node lost while the store is being opened costs no restart") {
  for (const bool first : {true, false}) {
    ScriptedJob job(2, 3, {{"max_restarts", "0"}, {"last_call_ms", "10"}});
    const LinkId a = job.joins("a");
    const LinkId b = job.joins("b");
    const LinkId c = job.joins("c");
    CHECK(job.coordinator().job().round == 1);
    job.disconnects(first ? a : b);
    if (!first) job.stops(a);
    job.wait(Milliseconds{10});
    CHECK(job.coordinator().job().round == 2);
    job.opens();
    CHECK(job.next<Start>(c).ranks.node_count == 2);
    CHECK(job.coordinator().job().budget.used() == 0);
    CHECK_FALSE(job.coordinator().job().verdict);
  }
}

TEST_CASE("node rank 0 that answers pings but opens no store is lost after its time") {
  ScriptedJob job(1, 2, {{"last_call_ms", "0"}, {"join_timeout_ms", "100000"}});
  const LinkId a = job.joins("a");
  job.wait(Milliseconds{29'999});
  CHECK_FALSE(job.has<Refused>(a));
  job.wait(Milliseconds{1});
  CHECK(job.next<Refused>(a).why == "a (10.0.0.1, node rank 0) was lost: it did not open the store in time");
  CHECK(job.closed(a));
  job.wait(Milliseconds{70'000});
  REQUIRE(job.coordinator().job().verdict);
  CHECK(job.coordinator().done());
}

TEST_CASE("MASTER_ADDR is an address by which peers reach node rank 0") {
  ScriptedJob job(2, 2);
  Join own = job.own_join_of("a");
  SECTION("a member on the coordinator's machine is reached as the others reached the coordinator") {
    const LinkId a = job.joins(own, LinkAddresses{ip("127.0.0.1"), ip("127.0.0.1")});
    job.joins(job.join_of("b"), LinkAddresses{ip("::ffff:192.168.0.2"), ip("::ffff:192.168.0.1")});
    const Open open = job.next<Open>(a);
    CHECK(open.address == "192.168.0.1");
    CHECK(open.addresses == std::vector<std::string>{"10.0.0.1", "127.0.0.1", "192.168.0.1", "192.168.0.2"});
  }
  SECTION("one that advertises an address is reached there") {
    own.address = "172.16.0.1";
    const LinkId a = job.joins(own, LinkAddresses{ip("127.0.0.1"), ip("127.0.0.1")});
    job.joins(job.join_of("b"), LinkAddresses{ip("fd00::2"), ip("fd00::1")});
    CHECK(job.next<Open>(a).address == "172.16.0.1");
  }
  SECTION("workers may connect from every address of an agent's machine") {
    const LinkId a = job.joins(own, LinkAddresses{ip("127.0.0.1"), ip("127.0.0.1")});
    Join other = job.join_of("b");
    other.own_addresses = {"10.8.0.2", "192.168.0.2", "::ffff:10.9.0.2", "fd00::2", "a name",
                           "",         "0.0.0.0",     "10.8.0.2"};
    job.joins(other, LinkAddresses{ip("192.168.0.2"), ip("192.168.0.1")});
    CHECK(job.next<Open>(a).addresses == std::vector<std::string>{"10.0.0.1", "10.8.0.2", "10.9.0.2", "127.0.0.1",
                                                                  "192.168.0.1", "192.168.0.2", "fd00::2"});
  }
  SECTION("an agent can make the list longer by a bounded number") {
    own.own_addresses.clear();
    for (int i = 0; i < 1000; ++i)
      own.own_addresses.push_back("10.7." + std::to_string(i / 250) + "." + std::to_string(i % 250));
    const LinkId a = job.joins(own, LinkAddresses{ip("192.168.0.1"), ip("192.168.0.1")});
    job.joins(job.join_of("b"), LinkAddresses{ip("192.168.0.2"), ip("192.168.0.1")});
    const auto addresses = job.next<Open>(a).addresses;
    CHECK(addresses.size() == 64 + 2);
    CHECK(addresses.front() == "10.7.0.0");
    CHECK(addresses[63] == "10.7.0.63");
  }
  SECTION("a name that one advertises is for workers only: a connection comes from an address") {
    own.address = "a.example";
    const LinkId a = job.joins(own, LinkAddresses{ip("192.168.0.1"), ip("192.168.0.1")});
    job.joins(job.join_of("b"), LinkAddresses{ip("192.168.0.2"), ip("192.168.0.1")});
    const Open open = job.next<Open>(a);
    CHECK(open.address == "a.example");
    CHECK(open.addresses == std::vector<std::string>{"192.168.0.1", "192.168.0.2"});
  }
  SECTION("all on one machine use loopback") {
    const LinkId a = job.joins(own, LinkAddresses{ip("127.0.0.1"), ip("127.0.0.1")});
    job.joins(job.join_of("b"), LinkAddresses{ip("127.0.0.1"), ip("127.0.0.1")});
    CHECK(job.next<Open>(a).address == "127.0.0.1");
  }
}

TEST_CASE("the list of addresses of very many nodes still fits into a frame") {
  constexpr int nodes = 1000;
  ScriptedJob job(nodes, nodes);
  for (int node = 0; node < nodes; ++node) {
    const std::string host = "node" + std::to_string(node);
    Join join = node == 0 ? job.own_join_of(host) : job.join_of(host);
    for (int i = 0; i < 64; ++i) {
      join.own_addresses.push_back("fd00:1234:5678:9abc:" + std::to_string(1000 + node) +
                                   ":1234:5678:" + std::to_string(1000 + i));
    }
    job.joins(join);
  }
  const Open open = job.next<Open>(1);
  CHECK(open.addresses.size() == nodes * (1 + 50'000 / nodes));
  std::string payload;
  encode(FromCoordinator(open), payload);
  CHECK(payload.size() < max_payload);
}

TEST_CASE("a machine reports the addresses that others can reach") {
  std::vector<IpAddress> own{ip("10.0.0.7"), ip("127.0.0.1"), ip("::1"), ip("fd00::7")};
  CHECK(advertised_addresses(own) == std::vector<std::string>{"10.0.0.7", "fd00::7"});
  own = {ip("127.0.0.1"), ip("127.0.0.7"), ip("::1")};
  CHECK(advertised_addresses(own) == std::vector<std::string>{"127.0.0.1", "127.0.0.7", "::1"});
  own.clear();
  CHECK(advertised_addresses(own).empty());
  for (int i = 0; i < 200; ++i) own.push_back(ip("10.0.0." + std::to_string(i)));
  CHECK(advertised_addresses(own).size() == max_own_addresses);
}

TEST_CASE("a coordinator whose step the order lacks ends the job, for all alike, and names the step") {
  const std::string state = GENERATE("opening", "running", "stopping", "gathering");
  ScriptedJob job(2, 2);
  job.options.on_step = [&](std::string_view, std::string_view next, bool) { return next != state; };
  const LinkId a = job.joins("a"), b = job.joins("b");
  job.opens();
  if (state == "stopping" || state == "gathering") job.fails(a, 0, 1);
  for (const LinkId link : {a, b}) {
    if (state == "gathering") job.stops(link);
  }
  for (const LinkId link : {a, b}) {
    const auto verdict = job.next<VerdictMessage>(link);
    CHECK(verdict.kind == VerdictKind::launcher_failed);
    CHECK(verdict.exit_code == 125);
    CHECK(verdict.why.starts_with("the coordinator on a took a wrong step, "));
    job.disconnects(link);
  }
  CHECK(job.coordinator().done());
}
