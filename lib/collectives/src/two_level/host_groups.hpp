#pragma once

#include <vector>

#include "host_identity.hpp"

namespace ddrun::collectives {

/// The ranks of a group by the memory that they share: what is called a host here may also be one of several containers
/// of a machine.
struct HostGroups {
  /// Ranks of each host in their order; hosts in the order of their first ranks.
  std::vector<std::vector<int>> hosts;

  /// Who does not know where it is, is a host of its own.
  [[nodiscard]] static HostGroups of(const std::vector<HostIdentity>& all);

  [[nodiscard]] int host_of(int rank) const;
  /// Position of `rank` among those of its host.
  [[nodiscard]] int local_rank_of(int rank) const;
  /// Ranks that each host has at least. Those of equal local rank below this are a column: one on each host.
  [[nodiscard]] int columns() const;
  /// By host.
  [[nodiscard]] std::vector<int> column(int local_rank) const;
  /// Ranks of the largest host.
  [[nodiscard]] int most() const;
  /// "2 hosts with 4 ranks each", "3 hosts with 1 to 4 ranks"
  [[nodiscard]] std::string in_words() const;
};

}  // namespace ddrun::collectives
