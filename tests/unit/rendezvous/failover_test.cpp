// Whole jobs in virtual time whose coordinator may be any machine's, drawn from seeds. To see one again:
// DDRUN_SIMULATION_SEED=n; for many: DDRUN_SIMULATION_RUNS=n.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "failover_world.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

/// What went wrong, with the last things that happened before; empty if nothing did.
std::string run(const FailoverScenario& scenario, FailoverWorld::Summary* summary = nullptr) {
  try {
    FailoverWorld world(scenario);
    world.run();
    if (summary != nullptr) *summary = world.summary();
    return "";
  } catch (const Violation& violation) {
    // The same once more, to tell how it came to it.
    FailoverWorld again(scenario, true);
    try {
      again.run();
    } catch (const Violation&) {
    }
    return concat(again.trace(), scenario.describe(), "\n", violation.what());
  }
}

}  // namespace

TEST_CASE("whichever machine of a job is lost, it goes on or ends for all alike") {
  if (const char* seed = std::getenv("DDRUN_SIMULATION_SEED")) {
    const std::string trouble = run(draw_failover(std::strtoull(seed, nullptr, 10)));
    if (!trouble.empty()) FAIL(trouble);
    return;
  }
  const std::uint64_t first = number_from("DDRUN_SIMULATION_FIRST", 1);
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 400);
  std::map<int, int> verdicts;
  std::uint64_t rounds = 0, terms = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    FailoverWorld::Summary summary;
    const std::string trouble = run(draw_failover(seed), &summary);
    if (!trouble.empty()) FAIL(trouble);
    ++verdicts[summary.verdict ? static_cast<int>(summary.verdict->kind) : -1];
    rounds += summary.rounds;
    terms += summary.terms;
  }
  // Every end is reached that can be, and coordinators follow one another, else the seeds show little.
  if (runs >= 300) {
    for (const VerdictKind kind : {VerdictKind::success, VerdictKind::worker_failed, VerdictKind::stopped_by_signal,
                                   VerdictKind::launcher_failed, VerdictKind::node_lost}) {
      INFO("verdict " << static_cast<int>(kind));
      CHECK(verdicts[static_cast<int>(kind)] > 0);
    }
    CHECK(rounds > runs);
    CHECK(terms > runs + runs / 20);
  }
}

TEST_CASE("each promise that is broken on purpose is noticed", "[full]") {
  // How often, instead of whether: DDRUN_SIMULATION_BREAKS=n tries so many seeds with each.
  const std::uint64_t all = number_from("DDRUN_SIMULATION_BREAKS", 0);
  for (const auto& [broken, name] : all_breaks) {
    CAPTURE(name);
    std::uint64_t first = 0, noticed = 0;
    std::string how;
    for (std::uint64_t seed = 1; seed <= (all != 0 ? all : 2'000) && (all != 0 || first == 0); ++seed) {
      FailoverScenario scenario = draw_failover(seed);
      scenario.broken = broken;
      FailoverWorld world(scenario);
      try {
        world.run();
      } catch (const Violation& violation) {
        ++noticed;
        if (first == 0) {
          first = seed;
          how = violation.what();
        }
      }
    }
    if (all != 0)
      std::cout << name << ": first at seed " << first << ", " << noticed << " of " << all << ": " << how << std::endl;
    CHECK(first != 0);
  }
}

namespace {

struct Takeover {
  double seconds = 0;               ///< from the end of the coordinator to the last START heard
  std::map<int, std::size_t> said;  ///< how many agents have said and heard so many messages meanwhile
};

Takeover take_over(int agents) {
  FailoverWorld world(large_failover(agents));
  const auto all = static_cast<std::size_t>(agents);
  REQUIRE(world.run_until_started(1, all, std::chrono::seconds(30)));
  const auto leader = world.leader();
  REQUIRE(leader);
  world.take_counts();
  const auto killed_at = world.timeline.now();
  world.kill(*leader);
  REQUIRE(world.run_until_started(2, all - 1, std::chrono::seconds(30)));
  Takeover takeover;
  takeover.seconds = std::chrono::duration<double>(world.invariants.last_began_at() - killed_at).count();
  for (const auto& [node, count] : world.take_counts()) ++takeover.said[count];
  return takeover;
}

}  // namespace

TEST_CASE("ten thousand agents meet the next coordinator within two seconds, with as many messages each as a thousand",
          "[full]") {
  const Takeover thousand = take_over(1'000);
  const Takeover ten_thousand = take_over(10'000);
  CAPTURE(thousand.seconds, thousand.said, ten_thousand.seconds, ten_thousand.said);
  if (std::getenv("DDRUN_SIMULATION_BREAKS") != nullptr) {
    std::cout << thousand.seconds << " s and " << ten_thousand.seconds << " s" << std::endl;
    for (const auto& [messages, agents] : ten_thousand.said) std::cout << messages << ": " << agents << std::endl;
  }
  CHECK(thousand.seconds <= 2);
  CHECK(ten_thousand.seconds <= 2);
  // JOIN, WELCOME, WAITING, START; the last one does not wait, and node rank 0 opens the store besides.
  for (const auto* takeover : {&thousand, &ten_thousand}) CHECK(takeover->said.rbegin()->first <= 6);
  CHECK(thousand.said.at(4) >= 995);
  CHECK(ten_thousand.said.at(4) >= 9'995);
}

TEST_CASE("a coordinator that is told to end costs no restart, whichever of it and the lease its members hear first") {
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 400);
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverScenario scenario = large_failover(2 + static_cast<int>(seed % 3));
    scenario.seed = seed;
    scenario.min_nodes = 1;
    scenario.max_restarts = 0;  // one that was used up would end the job
    scenario.slowest_message = Milliseconds{900};
    scenario.ttl = std::chrono::seconds(10);
    scenario.quick_lease = true;
    CAPTURE(seed, scenario.agents);
    FailoverWorld world(scenario);
    const auto all = static_cast<std::size_t>(scenario.agents);
    REQUIRE(world.run_until_started(1, all, std::chrono::seconds(30)));
    const auto leader = world.leader();
    REQUIRE(leader);
    world.preempt(*leader);
    CHECK(world.run_until_started(2, all - 1, std::chrono::seconds(30)));
  }
}
