#pragma once

#include <string>
#include <vector>

#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// What a node brings into a round.
struct NodeShape {
  int local_world_size = 1;
  std::string role = "default";
};

/// The rank assignment: nodes in order of node rank get consecutive ranks, local rank by local rank. Ranks within
/// a role are counted the same way over the nodes of that role. Local world sizes may differ.
/// Only the fields that follow from the nodes are set (node rank and count, base ranks, world and role sizes).
[[nodiscard]] std::vector<RankAssignment> assign_ranks(const std::vector<NodeShape>& nodes);

}  // namespace ddrun::rendezvous
