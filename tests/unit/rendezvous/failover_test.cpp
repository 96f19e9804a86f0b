// Whole jobs in virtual time with a coordinator on any machine, drawn from seeds. To repeat one:
// DDRUN_SIMULATION_SEED=n; for many: DDRUN_SIMULATION_RUNS=n; to compare two builds: DDRUN_SIMULATION_HASHES=1.

#include <cstdlib>
#include <map>

#include "ddrun/test/catch.hpp"
#include "failover_world.hpp"
#include "order_marks.hpp"

using namespace ddrun;
using namespace ddrun::test;

TEST_CASE("whichever machine of a job is lost, the job goes on or ends for all alike") {
  if (const char* seed = std::getenv("DDRUN_SIMULATION_SEED")) {
    const std::string violation = play<FailoverWorld>(draw_failover(std::strtoull(seed, nullptr, 10)));
    if (!violation.empty()) FAIL(violation);
    return;
  }
  const std::uint64_t first = number_from("DDRUN_SIMULATION_FIRST", 1);
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 400);
  std::map<int, int> verdicts;
  std::uint64_t rounds = 0, terms = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    FailoverWorld::Summary summary;
    const std::string violation = play<FailoverWorld>(draw_failover(seed), &summary);
    if (!violation.empty()) FAIL(violation);
    print_hash("failover", seed, summary.hash);
    ++verdicts[summary.verdict ? static_cast<int>(summary.verdict->kind) : -1];
    rounds += summary.rounds;
    terms += summary.terms;
  }
  print_unreached<MemberOrder>("member");
  print_unreached<CoordinatorOrder>("coordinator");
  print_unreached<DialerOrder>("dialer");
  print_unreached<lease::CandidateOrder>("candidate");
  // Every possible end occurs, and coordinators change; otherwise the seeds show little.
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

TEST_CASE("whichever machine of a job is lost, all members of a round get the same blobs, or its end") {
  const std::uint64_t first = number_from("DDRUN_SIMULATION_FIRST", 1);
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 400);
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    FailoverScenario scenario = draw_failover(seed);
    scenario.exchanges = 1 + static_cast<std::uint32_t>(seed % 3);
    scenario.ask_interval.reset();
    const std::string violation = play<FailoverWorld>(std::move(scenario));
    if (!violation.empty()) FAIL(violation);
  }
}

TEST_CASE("answers of 4 MiB on slow links cost no machine") {
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 400) / 50;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverWorld::Summary summary;
    const std::string violation = play<FailoverWorld>(draw_slow_answers(seed), &summary);
    if (!violation.empty()) FAIL(violation);
    REQUIRE(summary.verdict);
    CAPTURE(seed, summary.verdict->why);
    CHECK(summary.verdict->kind == VerdictKind::success);
    CHECK(summary.terms == 1);
  }
}

TEST_CASE("preempting the coordinator costs no restart, in any order of its message and the lease") {
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 400) / 4;
  for (std::uint64_t seed = 1; seed <= runs; ++seed) {
    FailoverScenario scenario = draw_preemption(seed);
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
