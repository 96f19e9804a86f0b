#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "ddrun/test/catch.hpp"
#include "preparation.hpp"

using namespace ddrun;
using namespace ddrun::agent;

TEST_CASE("in each world ranks are dense, in the order of the programs") {
  std::mt19937 random(70);
  const auto up_to = [&](int highest) { return std::uniform_int_distribution<int>(0, highest)(random); };
  const char* const environment[] = {"PATH=/bin:/usr/bin", nullptr};
  for (int round = 0; round < 300; ++round) {
    LaunchSpec spec;
    spec.programs.resize(static_cast<std::size_t>(2 + up_to(4)));
    for (ProgramSpec& program : spec.programs) {
      program.name = "true";
      program.role = "role" + std::to_string(&program - spec.programs.data());
      program.nproc.count = 1 + up_to(6);
      const int world = up_to(3);
      if (world > 0) program.world = "w" + std::to_string(world);
      program.is_service = up_to(4) == 0;
    }
    const auto prepared = prepare(spec, environment);
    REQUIRE(prepared);
    RankAssignment node;
    node.run_id = "job";
    std::vector<int> ports;
    for (int world = 0; world < prepared->worlds; ++world) ports.push_back(1000 + world);
    const std::vector<RankAssignment> ranks = ranks_by_program(*prepared, node, ports);
    REQUIRE(ranks.size() == spec.programs.size());

    std::map<std::string, int> expected;  // the next rank of a world, by its name or, without one, its program's role
    int slot = 0;
    for (std::size_t index = 0; index < ranks.size(); ++index) {
      const ProgramSpec& program = spec.programs[index];
      // A service without a world has numbers instead.
      int& next = expected[program.world.empty() ? program.role : program.world];
      CHECK(prepared->programs[index].world.has_value() == program.has_world());
      for (int i = 0; i < program.nproc.count; ++i, ++slot, ++next) {
        const WorkerPlace& place = prepared->places.at(static_cast<std::size_t>(slot));
        CHECK(place.program == static_cast<int>(index));
        CHECK(place.number == i);
        CHECK(ranks[index].rank_of(place.local_rank) == next);
        CHECK(ranks[index].role_rank_of(place.local_rank) == i);
        if (program.has_world()) CHECK(prepared->slot_of(*prepared->programs[index].world, place.local_rank) == slot);
      }
      CHECK(ranks[index].role_world_size == program.nproc.count);
    }
    CHECK(prepared->workers() == slot);
    std::map<std::string, std::set<int>> ports_of;
    std::set<int> used;
    for (std::size_t index = 0; index < ranks.size(); ++index) {
      const ProgramSpec& program = spec.programs[index];
      if (!program.has_world()) continue;
      const std::string world = program.world.empty() ? program.role : program.world;
      CHECK(ranks[index].world_size == expected[world]);
      CHECK(ranks[index].local_world_size == expected[world]);
      ports_of[world].insert(ranks[index].master_port);
      used.insert(ranks[index].master_port);
    }
    for (const auto& [world, of_world] : ports_of) CHECK(of_world.size() == 1);
    CHECK(used.size() == ports_of.size());
    CHECK(prepared->worlds == std::max(1, static_cast<int>(ports_of.size())));
  }
}

TEST_CASE("one program has the ranks of its machine") {
  LaunchSpec spec;
  spec.first().name = "true";
  spec.first().nproc.count = 3;
  const char* const environment[] = {"PATH=/bin:/usr/bin", nullptr};
  const auto prepared = prepare(spec, environment);
  REQUIRE(prepared);
  RankAssignment node;
  node.base_rank = 6;
  node.role_base_rank = 4;
  node.world_size = 9;
  node.master_port = 7;
  CHECK(ranks_by_program(*prepared, node, {}) == std::vector{node});
  CHECK(prepared->role_of(0).empty());
}
