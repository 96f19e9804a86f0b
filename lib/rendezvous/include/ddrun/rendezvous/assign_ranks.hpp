#pragma once

#include <string>
#include <vector>

#include "ddrun/spec/rank_assignment.hpp"

namespace ddrun::rendezvous {

/// One node as it takes part in a round.
struct Member {
  int local_world_size = 1;
  std::string role = "default";
};

/// The rank assignment: members in order of node rank get consecutive ranks, local rank by local rank. Ranks within
/// a role are counted the same way over the members of that role. Local world sizes may differ.
/// Only the fields that follow from the members are set (node rank and count, base ranks, world and role sizes).
[[nodiscard]] std::vector<RankAssignment> assign_ranks(const std::vector<Member>& members);

}  // namespace ddrun::rendezvous
