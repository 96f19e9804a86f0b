#include "pairs.hpp"

#include <set>

#include "ddrun/test/catch.hpp"
#include "reports.hpp"

using namespace ddrun;
using namespace ddrun::bench;

TEST_CASE("every pair is scheduled once, in the fewest steps") {
  for (int players = 1; players <= 33; ++players) {
    CAPTURE(players);
    const int steps = round_robin_steps(players);
    CHECK(steps == (players == 1 ? 0 : players % 2 == 0 ? players - 1 : players));
    std::set<std::pair<int, int>> pairs_seen;
    bool mutual = true;
    int idle = 0;
    for (int step = 0; step < steps; ++step) {
      for (int player = 0; player < players; ++player) {
        const int other = round_robin_partner(player, players, step);
        REQUIRE(other >= 0);
        REQUIRE(other < players);
        mutual = mutual && round_robin_partner(other, players, step) == player;
        idle += other == player ? 1 : 0;
        if (player < other) CHECK(pairs_seen.insert({player, other}).second);
      }
    }
    CHECK(mutual);
    CHECK(static_cast<int>(pairs_seen.size()) == players * (players - 1) / 2);
    CHECK(idle == (players % 2 == 0 || players == 1 ? 0 : players));
  }
}

TEST_CASE("nodes are distinguished by host and by repeated local ranks") {
  const auto ranks = [](const std::vector<Node>& nodes) {
    std::vector<std::vector<int>> all;
    for (const Node& one : nodes) all.push_back(one.ranks);
    return all;
  };
  using Ranks = std::vector<std::vector<int>>;
  const std::vector<collectives::Member> two_hosts{{"a", 1}, {"a", 2}, {"b", 3}, {"b", 4}};
  CHECK(ranks(nodes_of(two_hosts, {0, 1, 0, 1})) == Ranks{{0, 1}, {2, 3}});
  CHECK(ranks(nodes_of(two_hosts, {1, 0, -1, -1})) == Ranks{{1, 0}, {2, 3}});
  const std::vector<collectives::Member> alternating{{"a", 1}, {"b", 2}, {"a", 3}, {"b", 4}};
  CHECK(ranks(nodes_of(alternating, {0, 0, 1, 1})) == Ranks{{0, 2}, {1, 3}});
  const std::vector<collectives::Member> one_name(4, {"a", 1});
  const auto twins = nodes_of(one_name, {0, 1, 0, 1});
  CHECK(ranks(twins) == Ranks{{0, 1}, {2, 3}});
  CHECK(twins[0].name == "a");
  CHECK(twins[1].name == "a#2");
  CHECK(ranks(nodes_of(one_name, {-1, -1, -1, -1})) == Ranks{{0, 1, 2, 3}});
}

TEST_CASE("the worst pairs and the worst node are found and named") {
  Pairs pairs;
  pairs.nodes = {"a", "b", "c", "d"};
  pairs.gbps = {0, 10, 3, 9, 10, 0, 2, 8, 3, 2, 0, 9, 9, 8, 9, 0};
  pairs.median_us = {0, 1, 2, 9, 1, 0, 3, 4, 2, 3, 0, 5, 9, 4, 5, 0};
  pairs.minimum_us = pairs.median_us;
  find_worst(pairs);
  CHECK(pairs.slowest.first == 1);
  CHECK(pairs.slowest.second == 2);
  CHECK(pairs.latest.first == 0);
  CHECK(pairs.latest.second == 3);
  CHECK(pairs.worst_node == 2);
  const std::string text = table_of(pairs);
  CHECK(text.find("# Least bandwidth      : b and c, 2.00 GB/s\n") != std::string::npos);
  CHECK(text.find("# Longest latency      : a and d, 9.00 us\n") != std::string::npos);
  CHECK(text.find("# Worst of all         : c, ") != std::string::npos);
  for (std::size_t begin = 0; begin < text.size(); begin = text.find('\n', begin) + 1) {
    const char first = text[begin];
    CHECK((first == '#' || first == ' '));
  }
}

TEST_CASE("of two nodes neither is the worst") {
  Pairs pairs;
  pairs.nodes = {"a", "b"};
  pairs.gbps = pairs.median_us = pairs.minimum_us = {0, 5, 5, 0};
  find_worst(pairs);
  CHECK(pairs.slowest.first == 0);
  CHECK(pairs.slowest.second == 1);
  CHECK(pairs.worst_node == -1);
}
