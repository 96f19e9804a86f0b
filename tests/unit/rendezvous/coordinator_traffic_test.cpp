// The number of messages per agent must not depend on the number of agents.

#include <iostream>

#include "ddrun/test/catch.hpp"
#include "scripted_job.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;
using ddrun::test::ScriptedJob;

namespace {

/// Messages to one agent that runs no coordinator, in each phase of a job of `nodes`.
struct Traffic {
  std::map<std::size_t, int> join, start, exchange, restart, end, idle_for_10_s;
  bool operator==(const Traffic&) const = default;
};

Traffic measure(int nodes) {
  ScriptedJob job(nodes, nodes);
  Traffic traffic;
  Join own = job.own_join_of("a");
  job.joins(own);
  const LinkId watched = job.joins("b");
  for (int i = 2; i + 1 < nodes; ++i) job.joins("c" + std::to_string(i));
  traffic.join = job.counts(watched);
  job.forget_counts();
  job.joins("z");
  job.opens();
  traffic.start = job.counts(watched);
  job.forget_counts();
  for (LinkId link = 1; link <= static_cast<LinkId>(nodes); ++link) {
    job.sends(link, Exchange{job.coordinator().job().round, 0, std::string(1000, 'k')});
  }
  traffic.exchange = job.counts(watched);
  job.forget_counts();
  job.wait(Milliseconds{10'000});
  traffic.idle_for_10_s = job.counts(watched);
  job.forget_counts();
  job.fails(1, 0, 1);
  for (LinkId link = 1; link <= static_cast<LinkId>(nodes); ++link) job.stops(link);
  job.opens();
  traffic.restart = job.counts(watched);
  job.forget_counts();
  for (LinkId link = 1; link <= static_cast<LinkId>(nodes); ++link) {
    job.succeeds(link);
    job.stops(link);
  }
  traffic.end = job.counts(watched);
  REQUIRE(job.coordinator().job().verdict);
  return traffic;
}

using Counts = std::map<std::size_t, int>;

template <class T>
std::size_t kind() {
  return FromCoordinator(T{}).index();
}

}  // namespace

TEST_CASE("messages per agent do not depend on the number of agents") {
  const Traffic three = measure(3);
  CHECK(three.join == Counts{{kind<Welcome>(), 1}, {kind<Waiting>(), 1}});
  CHECK(three.start == Counts{{kind<Start>(), 1}});
  CHECK(three.exchange == Counts{{kind<Exchanged>(), 1}});
  CHECK(three.idle_for_10_s == Counts{{kind<Ping>(), 10}});
  CHECK(three.restart == Counts{{kind<Stop>(), 1}, {kind<Start>(), 1}});
  CHECK(three.end == Counts{{kind<VerdictMessage>(), 1}});
  CHECK(measure(300) == three);
}
