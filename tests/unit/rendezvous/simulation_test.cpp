// Whole jobs in virtual time, drawn from seeds. To repeat one: DDRUN_SIMULATION_SEED=n; for many:
// DDRUN_SIMULATION_RUNS=n; to compare two builds: DDRUN_SIMULATION_HASHES=1.

#include <cstdlib>

#include "ddrun/test/catch.hpp"
#include "order_marks.hpp"
#include "simulation_world.hpp"

using namespace ddrun;
using namespace ddrun::test;

TEST_CASE("whatever happens to a job, all its agents get the same result") {
  if (const char* seed = std::getenv("DDRUN_SIMULATION_SEED")) {
    const std::string violation = play<World>(draw_scenario(std::strtoull(seed, nullptr, 10)));
    if (!violation.empty()) FAIL(violation);
    return;
  }
  const std::uint64_t first = number_from("DDRUN_SIMULATION_FIRST", 1);
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 400);
  std::map<int, int> verdicts;
  std::uint64_t rounds = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    World::Summary summary;
    const std::string violation = play<World>(draw_scenario(seed), &summary);
    if (!violation.empty()) FAIL(violation);
    print_hash("simulation", seed, summary.hash);
    ++verdicts[summary.verdict ? static_cast<int>(summary.verdict->kind) : -1];
    rounds += summary.rounds;
  }
  print_unreached<CoordinatorOrder>("coordinator");
  // Every end occurs; otherwise the seeds show little.
  if (runs >= 300) {
    for (int kind = 0; kind <= 5; ++kind) {
      INFO("verdict " << kind);
      CHECK(verdicts[kind] > 0);
    }
    CHECK(rounds > runs);
  }
}

TEST_CASE("whatever happens to a job, all members of a round get the same blobs, or its end") {
  const std::uint64_t first = number_from("DDRUN_SIMULATION_FIRST", 1);
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 400);
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    Scenario scenario = draw_scenario(seed);
    scenario.exchanges = 1 + static_cast<std::uint32_t>(seed % 3);
    const std::string violation = play<World>(std::move(scenario));
    if (!violation.empty()) FAIL(violation);
  }
}
