#include "measure/nodes.hpp"

#include <algorithm>
#include <map>

#include "ddrun/base/text.hpp"

namespace ddrun::allreduce {

std::vector<Node> nodes_of(const std::vector<collectives::Member>& members, const std::vector<int>& local_ranks) {
  struct Seen {
    std::size_t last = 0;  ///< node
    int nodes = 0;
  };
  std::map<std::string, Seen> hosts;
  std::vector<Node> nodes;
  std::vector<std::map<int, int>> by_local;  // of each node: local rank, rank
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    Seen& host = hosts[members[rank].host];
    int local = local_ranks[rank];
    if (local < 0) local = host.nodes == 0 ? 0 : static_cast<int>(by_local[host.last].size());
    if (host.nodes == 0 || by_local[host.last].count(local) != 0) {
      host.last = nodes.size();
      ++host.nodes;
      const std::string& name = members[rank].host;
      nodes.push_back({host.nodes == 1 ? name : concat(name, '#', host.nodes), {}});
      by_local.emplace_back();
    }
    by_local[host.last].emplace(local, static_cast<int>(rank));
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& [local, rank] : by_local[i]) nodes[i].ranks.push_back(rank);
  }
  return nodes;
}

}  // namespace ddrun::allreduce
