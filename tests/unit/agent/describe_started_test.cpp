#include "worker_group.hpp"

#include "ddrun/test/catch.hpp"

using namespace ddrun::agent;

namespace {

using Workers = std::vector<std::pair<ddrun::RankName, pid_t>>;

Workers in_a_row(int count, pid_t step) {
  Workers workers;
  for (int rank = 0; rank < count; ++rank) workers.emplace_back(ddrun::RankName{"", rank}, 100 + rank * step);
  return workers;
}

}  // namespace

TEST_CASE("each rank is shown with its pid and neighbours are folded") {
  CHECK(describe_started({}, 16).empty());
  CHECK(describe_started({{{"", 3}, 77}}, 16) == "rank 3 pid 77");
  CHECK(describe_started(in_a_row(2, 1), 16) == "rank 0 pid 100, rank 1 pid 101");
  CHECK(describe_started(in_a_row(3, 1), 16) == "ranks 0-2 pids 100-102");
  CHECK(describe_started({{{"", 0}, 5}, {{"", 1}, 7}, {{"", 2}, 8}, {{"", 3}, 9}, {{"", 4}, 20}, {{"", 9}, 21}}, 16) ==
        "rank 0 pid 5, ranks 1-3 pids 7-9, rank 4 pid 20, rank 9 pid 21");
}

TEST_CASE("workers of several programs are told apart by their roles") {
  CHECK(describe_started({{{"a", 0}, 5}, {{"a", 1}, 6}, {{"a", 2}, 7}, {{"b", 0}, 8}, {{"b", 1}, 9}}, 16) ==
        "a ranks 0-2 pids 5-7, b rank 0 pid 8, b rank 1 pid 9");
}

TEST_CASE("many workers take one line") {
  CHECK(describe_started(in_a_row(10'000, 1), 16) == "ranks 0-9999 pids 100-10099");
  CHECK(describe_started(in_a_row(5, 2), 3) == "rank 0 pid 100, rank 1 pid 102, rank 2 pid 104, and 2 more");
  CHECK(describe_started(in_a_row(10'000, 2), 16).size() < 400);
}
