#pragma once

#include <string>
#include <vector>

#include "ddrun/collectives/communicator.hpp"

namespace ddrun::allreduce {

/// Ranks of one machine, by their number on it.
struct Node {
  std::string name;  ///< the host's; of several with the same name, with a number: "host", "host#2"
  std::vector<int> ranks;
};

/// The nodes of all ranks, in the order of their first ranks. `local_ranks`: as launchers say them, -1 where they do
/// not. A rank belongs to the last node of its host, or to a new one where its local rank is taken: two machines, or
/// containers, may share a name.
[[nodiscard]] std::vector<Node> nodes_of(const std::vector<collectives::Member>& members,
                                         const std::vector<int>& local_ranks);

}  // namespace ddrun::allreduce
