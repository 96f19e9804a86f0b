#include "ddrun/rendezvous/assign_ranks.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun;
using namespace ddrun::rendezvous;

TEST_CASE("one node has all ranks") {
  const auto all = assign_ranks({{4, "trainer"}});
  REQUIRE(all.size() == 1);
  CHECK(all[0].node_rank == 0);
  CHECK(all[0].node_count == 1);
  CHECK(all[0].base_rank == 0);
  CHECK(all[0].local_world_size == 4);
  CHECK(all[0].world_size == 4);
  CHECK(all[0].role_base_rank == 0);
  CHECK(all[0].role_world_size == 4);
  CHECK(all[0].rank_of(3) == 3);
}

TEST_CASE("nodes may have different numbers of workers") {
  const auto all = assign_ranks({{3, "default"}, {1, "default"}, {4, "default"}});
  REQUIRE(all.size() == 3);
  const int base[] = {0, 3, 4};
  const int size[] = {3, 1, 4};
  for (int node = 0; node < 3; ++node) {
    const auto& mine = all[static_cast<std::size_t>(node)];
    CAPTURE(node);
    CHECK(mine.node_rank == node);
    CHECK(mine.node_count == 3);
    CHECK(mine.base_rank == base[node]);
    CHECK(mine.local_world_size == size[node]);
    CHECK(mine.world_size == 8);
    CHECK(mine.role_base_rank == base[node]);
    CHECK(mine.role_world_size == 8);
  }
  CHECK(all[2].rank_of(3) == 7);
}

TEST_CASE("ranks within a role are counted over its own members") {
  const auto all = assign_ranks({{2, "trainer"}, {1, "reader"}, {3, "trainer"}, {2, "reader"}});
  REQUIRE(all.size() == 4);
  const int role_base[] = {0, 0, 2, 1};
  const int role_size[] = {5, 3, 5, 3};
  const int base[] = {0, 2, 3, 6};
  for (std::size_t node = 0; node < 4; ++node) {
    CAPTURE(node);
    CHECK(all[node].role_base_rank == role_base[node]);
    CHECK(all[node].role_world_size == role_size[node]);
    CHECK(all[node].base_rank == base[node]);
    CHECK(all[node].world_size == 8);
  }
}

TEST_CASE("without nodes there are no ranks") { CHECK(assign_ranks({}).empty()); }
