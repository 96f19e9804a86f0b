#pragma once

#include <string>

namespace ddrun {

/// What the members of one round agreed on, as one node sees it. All ranks are dense and start at 0.
struct RankAssignment {
  std::string run_id;     ///< TORCHELASTIC_RUN_ID
  int restart_count = 0;  ///< one number for the whole job
  int max_restarts = 0;
  int node_rank = 0;  ///< torchrun's group rank
  int node_count = 1;
  int base_rank = 0;  ///< rank of this node's local rank 0
  int local_world_size = 1;
  int world_size = 1;
  int role_base_rank = 0;  ///< rank within the role of this node's local rank 0
  int role_world_size = 1;
  std::string master_addr;  ///< an address, not a host name, unless the user gave a name
  int master_port = 0;

  bool operator==(const RankAssignment&) const = default;

  [[nodiscard]] int rank_of(int local_rank) const { return base_rank + local_rank; }
};

}  // namespace ddrun
