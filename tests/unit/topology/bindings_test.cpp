#include "ddrun/topology/cpus.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::topology;
using Lines = std::vector<std::string>;

namespace {

/// Two nodes of four cores with two hyper-threads each.
CpuLayout layout() {
  CpuLayout layout;
  layout.allowed = CpuSet::parse("0-15").value();
  for (int cpu = 0; cpu < 8; ++cpu) layout.cores.push_back({CpuSet({cpu, cpu + 8}), cpu / 4});
  layout.nodes = {{0, CpuSet::parse("0-3,8-11").value()}, {1, CpuSet::parse("4-7,12-15").value()}};
  return layout;
}

Lines lines(BindMode mode, int ranks, int base_rank = 0) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) names.push_back(concat("rank ", base_rank + rank));
  return describe_bindings(plan_bindings(mode, ranks, layout()), names, layout());
}

}  // namespace

TEST_CASE("cores are split evenly with their hyper-threads") {
  CHECK(lines(BindMode::cores, 2) == Lines{"rank 0: cpus 0-3,8-11 (node 0)", "rank 1: cpus 4-7,12-15 (node 1)"});
  CHECK(lines(BindMode::cores, 8, 8)[7] == "rank 15: cpus 7,15 (node 1)");
  CHECK(lines(BindMode::cores, 1) == Lines{"rank 0: cpus 0-15 (nodes 0,1)"});
}

TEST_CASE("the first ranks get the cores that are left over") {
  CHECK(lines(BindMode::cores, 3) == Lines{"rank 0: cpus 0-2,8-10 (node 0)", "rank 1: cpus 3-5,11-13 (nodes 0,1)",
                                           "rank 2: cpus 6,7,14,15 (node 1)"});
}

TEST_CASE("more ranks than cores share them with a warning") {
  const BindingPlan plan = plan_bindings(BindMode::cores, 10, layout());
  REQUIRE(plan.cpus.size() == 10);
  CHECK(plan.cpus[8] == plan.cpus[0]);
  CHECK(plan.cpus[9] == plan.cpus[1]);
  CHECK(plan.warnings == Lines{"--bind=cores: 10 workers share 8 cores; use fewer workers, or --bind=none to let the "
                               "kernel place them"});
  CHECK(plan_bindings(BindMode::cores, 8, layout()).warnings.empty());
}

TEST_CASE("ranks go over NUMA nodes in blocks") {
  CHECK(lines(BindMode::numa, 4) == Lines{"rank 0: cpus 0-3,8-11 (node 0)", "rank 1: cpus 0-3,8-11 (node 0)",
                                          "rank 2: cpus 4-7,12-15 (node 1)", "rank 3: cpus 4-7,12-15 (node 1)"});
  CHECK(lines(BindMode::numa, 3)[1] == "rank 1: cpus 0-3,8-11 (node 0)");
  CHECK(lines(BindMode::numa, 1) == Lines{"rank 0: cpus 0-3,8-11 (node 0)"});
}

TEST_CASE("without binding the report says so") {
  CHECK(plan_bindings(BindMode::none, 2, layout()).cpus.empty());
  CHECK(lines(BindMode::none, 1) == Lines{"rank 0: cpus 0-15 (nodes 0,1, not bound)"});
}
