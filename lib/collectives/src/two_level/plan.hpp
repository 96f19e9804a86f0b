#pragma once

#include <cstddef>
#include <string>

#include "tcp/plan.hpp"
#include "two_level/host_groups.hpp"

namespace ddrun::collectives {

/// Up to how many bytes of a block the blocks of a host travel together (BlockWork); larger ones go straight from rank
/// to rank (StraightWork). The same on all ranks.
struct TwoLevelPlan {
  std::size_t rooted = 0;  ///< gather and scatter
  std::size_t all_to_all = 0;

  /// "all_reduce, …: a slice of each column; …"
  [[nodiscard]] std::string in_words() const;
};

/// The least time by the cost model of plan_for(); `costs` are those between hosts.
[[nodiscard]] TwoLevelPlan plan_levels(const Costs& costs, const HostGroups& hosts);

}  // namespace ddrun::collectives
