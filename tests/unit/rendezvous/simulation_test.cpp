// Whole jobs in virtual time, drawn from seeds. To see one again: DDRUN_SIMULATION_SEED=n; for many:
// DDRUN_SIMULATION_RUNS=n.

#include <cstdlib>
#include <iostream>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "simulation_world.hpp"

using namespace ddrun;
using namespace ddrun::test;

namespace {

/// What went wrong, with the last things that happened before; empty if nothing did.
std::string run(const Scenario& scenario, World::Summary* summary = nullptr) {
  try {
    World world(scenario);
    world.run();
    if (summary != nullptr) *summary = world.summary();
    return "";
  } catch (const Violation& violation) {
    // The same once more, to tell how it came to it.
    World again(scenario, true);
    try {
      again.run();
    } catch (const Violation&) {
    }
    return concat(again.trace(), scenario.describe(), "\n", violation.what());
  }
}

}  // namespace

TEST_CASE("whatever happens to a job, it ends for all its agents alike") {
  if (const char* seed = std::getenv("DDRUN_SIMULATION_SEED")) {
    const std::string trouble = run(draw_scenario(std::strtoull(seed, nullptr, 10)));
    if (!trouble.empty()) FAIL(trouble);
    return;
  }
  const std::uint64_t first = number_from("DDRUN_SIMULATION_FIRST", 1);
  const std::uint64_t runs = number_from("DDRUN_SIMULATION_RUNS", 400);
  std::map<int, int> verdicts;
  std::uint64_t rounds = 0;
  for (std::uint64_t seed = first; seed < first + runs; ++seed) {
    World::Summary summary;
    const std::string trouble = run(draw_scenario(seed), &summary);
    if (!trouble.empty()) FAIL(trouble);
    ++verdicts[summary.verdict ? static_cast<int>(summary.verdict->kind) : -1];
    rounds += summary.rounds;
  }
  // Every end is reached, else the seeds show little.
  if (runs >= 300) {
    for (int kind = 0; kind <= 5; ++kind) {
      INFO("verdict " << kind);
      CHECK(verdicts[kind] > 0);
    }
    CHECK(rounds > runs);
  }
}
