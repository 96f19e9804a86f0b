#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddrun::pmi {

/// Consecutive ranks on one node: its node rank and their number.
using Placement = std::vector<std::pair<int, int>>;

/// Consecutive ranks of a node.
struct RankRange {
  int first = 0;
  int count = 0;
  int node = 0;  ///< node rank
};

/// What a node contributes to tag 0: its ranks, as ranges of two numbers of 32 bits each after the number of
/// ranges, and the bytes of which the name of the key space is made.
[[nodiscard]] std::string encode_node(const std::vector<int>& ranks, std::string_view random);
/// Appends the ranges of this node to `all`, and returns its random bytes, of the borrowed blob; nothing for a
/// malformed one.
[[nodiscard]] std::optional<std::string_view> decode_node(std::string_view blob, int node, std::vector<RankRange>& all);
/// Nothing unless each rank of a world of this size is in one range.
[[nodiscard]] std::optional<Placement> place(std::vector<RankRange> all, int size);

/// `placement` with nodes numbered from 0 in the order in which they come, without empty parts and with neighbours of
/// one node joined.
[[nodiscard]] Placement number_nodes(const Placement& placement);

/// The node's number, as of number_nodes(), that has this rank; 0 if there is none.
[[nodiscard]] int node_of_rank(const Placement& numbered, int rank);

/// PMI_process_mapping: "(vector,(0,2,8),(2,1,4))" is 8 ranks on each of the nodes 0 and 1, then 4 on node 2. A reader
/// begins again at the first part until each rank has a node. Nothing where that takes 674 bytes or more, which MPICH
/// up to 4.0 would cut off without an error.
[[nodiscard]] std::optional<std::string> process_mapping(const Placement& numbered);

}  // namespace ddrun::pmi
