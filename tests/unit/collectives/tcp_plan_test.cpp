#include "tcp/plan.hpp"

#include "ddrun/test/catch.hpp"
#include "simulated_peers.hpp"
#include "tcp/algorithms.hpp"

using namespace ddrun;
using namespace ddrun::collectives;
using ddrun::test::Mailboxes;
using ddrun::test::run_simulated;

TEST_CASE("the longer a message takes to come, the fewer of them are sent") {
  const Costs quick{5, 0.001, 0.0001};
  const Costs slow{100, 0.001, 0.0001};
  for (const int ranks : {4, 7, 8, 16, 64}) {
    const Plan near = plan_for(quick, ranks);
    const Plan far = plan_for(slow, ranks);
    CAPTURE(ranks, near.in_words(), far.in_words());
    CHECK(near.doubling < far.doubling);
    CHECK(near.tree < far.tree);
    CHECK(near.doubling > 0);
    CHECK(near.doubling < (1U << 20U));
    CHECK(near.piece(1U << 26U, ranks) <= far.piece(1U << 26U, ranks));
  }
}

TEST_CASE("pieces of a chain are whole elements of every type") {
  for (const int ranks : {2, 3, 17}) {
    for (std::size_t bytes = 1; bytes < (std::size_t{1} << 32U); bytes = bytes * 3 + 1) {
      const std::size_t piece = plan_for({20, 0.0007, 0.0001}, ranks).piece(bytes, ranks);
      CHECK(piece >= (64U << 10U));
      CHECK(piece % 8 == 0);
    }
  }
}

TEST_CASE("a plan is told in words") {
  Plan plan;
  plan.doubling = 16 << 10;
  plan.halving = 2 << 20;
  plan.tree = Plan::unlimited;
  plan.block_tree = 512;
  CHECK(plan.in_words() ==
        "all_reduce: recursive doubling up to 16 KiB, then halving and doubling up to 2 MiB, then ring; "
        "reduce_scatter: recursive doubling up to 16 KiB, then ring; broadcast, reduce: tree; "
        "gather, scatter: tree up to 512 B, then direct; all_gather: ring");
}

TEST_CASE("all ranks measure the same") {
  Mailboxes boxes;
  std::vector<Costs> costs(5);
  const auto problems = run_simulated(5, boxes, [&](Peers& peers) -> std::string {
    Workspace ws;
    const auto measured = measure_costs(peers, ws);
    if (!measured) return measured.error().message;
    costs[static_cast<std::size_t>(peers.rank())] = *measured;
    return {};
  });
  CHECK(problems == std::vector<std::string>(5));
  for (const Costs& one : costs) {
    CHECK(one.latency > 0);
    CHECK(one.per_byte_reduced > 0);
    CHECK(one.latency == costs[0].latency);
    CHECK(one.per_byte == costs[0].per_byte);
    CHECK(one.per_byte_reduced == costs[0].per_byte_reduced);
  }
}
