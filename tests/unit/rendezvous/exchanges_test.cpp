// Blobs that the members of a round give each other.

#include "round_machine.hpp"

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

constexpr std::size_t mebibyte = 1024 * 1024;

/// What a round of as many members as there are blobs is sent.
std::vector<Exchanged> exchange(const std::vector<std::string>& blobs) {
  Exchanges exchanges;
  exchanges.begin(3, blobs.size());
  for (std::size_t rank = 0; rank + 1 < blobs.size(); ++rank) {
    CHECK(exchanges.add(static_cast<int>(rank), {3, 0, blobs[rank]}).value().empty());
  }
  return exchanges.add(static_cast<int>(blobs.size()) - 1, {3, 0, blobs.back()}).value();
}

struct TwoNodes {
  TwoNodes() {
    job.joins("a");
    job.joins("b");
    job.opens();
    round = job.coordinator().job().round;
    job.forget_all();
  }
  void contributes(LinkId link, std::uint32_t tag, const std::string& blob = "") {
    job.sends(link, Exchange{round, tag, blob});
  }

  ScriptedJob job{2, 2};
  Round round = 0;
};

}  // namespace

TEST_CASE("blobs are cut into parts of a mebibyte, between blobs") {
  const std::string half(mebibyte / 2, 'h'), whole(mebibyte, 'w'), large(3 * mebibyte, 'l');
  CHECK(exchange({"a"}) == std::vector{Exchanged{3, 0, 0, {"a"}, true}});
  CHECK(exchange({"a", "", "c"}) == std::vector{Exchanged{3, 0, 0, {"a", "", "c"}, true}});
  CHECK(exchange({half, half, "", "c"}) ==
        std::vector{Exchanged{3, 0, 0, {half, half, ""}, false}, Exchanged{3, 0, 3, {"c"}, true}});
  CHECK(exchange({"a", large, "", whole}) == std::vector{Exchanged{3, 0, 0, {"a"}, false},
                                                         Exchanged{3, 0, 1, {large, ""}, false},
                                                         Exchanged{3, 0, 3, {whole}, true}});
}

TEST_CASE("a tag is complete when all members have contributed to it, in order") {
  Exchanges exchanges;
  exchanges.begin(1, 2);
  const auto add = [&](int node_rank, std::uint32_t tag) {
    return exchanges.add(node_rank, {1, tag, concat(tag, ".", node_rank)}).value();
  };
  const auto tag = [](std::uint32_t number) {
    return std::vector{Exchanged{1, number, 0, {concat(number, ".0"), concat(number, ".1")}, true}};
  };
  CHECK(add(1, 1).empty());  // ignored
  CHECK(add(0, 0).empty());
  CHECK(add(0, 0).empty());  // ignored
  CHECK(add(0, 1).empty());
  CHECK(add(0, 2).empty());  // ignored
  CHECK(add(1, 0) == tag(0));
  CHECK(add(1, 0).empty());  // ignored
  CHECK(add(0, 2).empty());
  CHECK(add(1, 1) == tag(1));
  CHECK(add(1, 2) == tag(2));
  exchanges.begin(1, 1);
  CHECK(add(0, 1).empty());
  CHECK(add(0, 0).size() == 1);
}

TEST_CASE("blobs have bounds: each, and all as copied for each member") {
  const auto fits = [](std::size_t members, std::size_t bytes) {
    Exchanges exchanges;
    exchanges.begin(1, members);
    for (std::size_t rank = 0; rank < members; ++rank) {
      if (!exchanges.add(static_cast<int>(rank), {1, 0, std::string(bytes, 'k')})) return false;
    }
    return true;
  };
  CHECK(fits(1, 3 * mebibyte));
  CHECK_FALSE(fits(1, 3 * mebibyte + 1));
  CHECK(fits(64, mebibyte / 16));
  CHECK_FALSE(fits(64, mebibyte / 16 + 1));
}

TEST_CASE("all members of a round get the blobs of all") {
  TwoNodes nodes;
  nodes.contributes(2, 0, "two");
  CHECK_FALSE(nodes.job.has<Exchanged>(1));
  nodes.contributes(1, 0, "one");
  for (const LinkId link : {1U, 2U}) {
    CHECK(nodes.job.received(link) == std::vector<FromCoordinator>{Exchanged{nodes.round, 0, 0, {"one", "two"}, true}});
  }
}

TEST_CASE("tags with the highest bit have an order of their own") {
  TwoNodes nodes;
  constexpr std::uint32_t other = 0x80000000U;
  for (const std::uint32_t tag : {0U, other, other + 1, 1U}) {
    for (const LinkId link : {1U, 2U}) nodes.contributes(link, tag, "x");
    CHECK(nodes.job.next<Exchanged>(2) == Exchanged{nodes.round, tag, 0, {"x", "x"}, true});
  }
}

TEST_CASE("a machine whose ranks have ended while others wait for them is the cause of a failure") {
  const std::uint32_t order = GENERATE(0U, 0x80000000U);
  TwoNodes nodes;
  for (const LinkId link : {1U, 2U}) nodes.contributes(link, order);
  SECTION("others come to wait") {
    nodes.job.succeeds(2);
    CHECK_FALSE(nodes.job.has<Stop>(1));
    nodes.contributes(1, order + 1);
  }
  SECTION("others wait already") {
    nodes.contributes(1, order + 1);
    nodes.job.succeeds(2);
  }
  SECTION("others come to wait when it is finished") {
    nodes.job.succeeds(2);
    nodes.job.stops(2);
    nodes.contributes(1, order + 1);
  }
  const auto stop = nodes.job.next<Stop>(1);
  CHECK(stop.another_round);
  CHECK(stop.why.starts_with("the ranks on b have ended, but all those of another machine wait for them in a barrier"));
}

TEST_CASE("a machine whose ranks end after the last exchange is none") {
  TwoNodes nodes;
  for (const LinkId link : {1U, 2U}) nodes.contributes(link, 0);
  for (const LinkId link : {1U, 2U}) {
    nodes.job.succeeds(link);
    nodes.job.stops(link);
  }
  CHECK(nodes.job.next<VerdictMessage>(1).kind == VerdictKind::success);
}

TEST_CASE("an exchange that does not fit the round is ignored") {
  TwoNodes nodes;
  nodes.contributes(1, 0);
  const LinkId spare = nodes.job.joins("c");
  SECTION("of another round") { nodes.job.sends(2, Exchange{nodes.round + 1, 0, ""}); }
  SECTION("of a spare") { nodes.contributes(spare, 0); }
  SECTION("of a member whose workers have ended") {
    nodes.job.succeeds(2);
    nodes.contributes(2, 0);
  }
  SECTION("while the round is stopped") {
    nodes.job.fails(1, 0, 1);
    nodes.contributes(2, 0);
  }
  CHECK_FALSE(nodes.job.has<Exchanged>(1));
  CHECK_FALSE(nodes.job.has<Exchanged>(2));
}

TEST_CASE("the next round begins with tag 0, whatever was contributed before") {
  TwoNodes nodes;
  nodes.contributes(1, 0, "old");
  nodes.job.fails(2, 1, 1);
  nodes.job.stops(1);
  nodes.job.stops(2);
  nodes.job.opens();
  nodes.round = nodes.job.coordinator().job().round;
  nodes.job.forget_all();
  nodes.contributes(2, 0, "two");
  CHECK_FALSE(nodes.job.has<Exchanged>(1));
  nodes.contributes(1, 0, "one");
  CHECK(nodes.job.next<Exchanged>(1) == Exchanged{nodes.round, 0, 0, {"one", "two"}, true});
}

TEST_CASE("too many keys for an exchange end the job, restarts or not") {
  TwoNodes nodes;
  nodes.contributes(2, 0, std::string(3 * mebibyte + 1, 'k'));
  CHECK_FALSE(nodes.job.next<Stop>(1).another_round);
  nodes.job.stops(1);
  nodes.job.stops(2);
  const auto verdict = nodes.job.next<VerdictMessage>(1);
  CHECK(verdict.kind == VerdictKind::launcher_failed);
  CHECK(verdict.exit_code == 125);
  CHECK(verdict.host == "b");
  CHECK(verdict.why ==
        "the MPI ranks put too many keys for one exchange between 2 machines: more than 3 MiB on one, or 131072 KiB on "
        "all");
}
