#pragma once

#include <string>
#include <vector>

#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// A node's part in a round.
struct NodeShape {
  int local_world_size = 1;
  std::string role = "default";
};

/// Assigns consecutive ranks to nodes in order of node rank, and by local rank within a node; ranks within a role
/// likewise, over the nodes of that role. Local world sizes may differ. Sets only what follows from the nodes (node
/// rank and count, base ranks, world and role sizes).
[[nodiscard]] std::vector<RankAssignment> assign_ranks(const std::vector<NodeShape>& nodes);

}  // namespace ddrun::rendezvous
