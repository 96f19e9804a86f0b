#include "ddrun/rendezvous/assign_ranks.hpp"

#include <map>

namespace ddrun::rendezvous {

std::vector<RankAssignment> assign_ranks(const std::vector<Member>& members) {
  std::vector<RankAssignment> assignments(members.size());
  int world_size = 0;
  std::map<std::string, int> role_sizes;
  for (std::size_t node = 0; node < members.size(); ++node) {
    RankAssignment& mine = assignments[node];
    mine.node_rank = static_cast<int>(node);
    mine.node_count = static_cast<int>(members.size());
    mine.local_world_size = members[node].local_world_size;
    mine.base_rank = world_size;
    world_size += members[node].local_world_size;
    int& role_size = role_sizes[members[node].role];
    mine.role_base_rank = role_size;
    role_size += members[node].local_world_size;
  }
  for (std::size_t node = 0; node < members.size(); ++node) {
    assignments[node].world_size = world_size;
    assignments[node].role_world_size = role_sizes[members[node].role];
  }
  return assignments;
}

}  // namespace ddrun::rendezvous
