#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "hosts.hpp"
#include "tcp/communicator.hpp"
#include "tcp/plan.hpp"
#include "two_level/team.hpp"

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

/// What a rank of several hosts works with: the ranks of its own host, and its ways to the other hosts.
struct Levels {
  HostGroups hosts;
  int rank = 0;
  int size = 1;
  int host = 0;  ///< this rank's
  std::unique_ptr<TwoLevelTeam> team{};
  std::vector<int> column_ranks{};            ///< of the whole group, by host
  std::unique_ptr<TcpCommunicator> column{};  ///< none if this rank is in no column
  std::unique_ptr<TcpCommunicator> flat{};    ///< all ranks
  TwoLevelPlan plan{};

  /// The rank of a host that comes at this place among those of its host.
  [[nodiscard]] int rank_at(int of_host, int local_rank) const {
    return hosts.hosts[static_cast<std::size_t>(of_host)][static_cast<std::size_t>(local_rank)];
  }
  /// A call of this rank's column.
  [[nodiscard]] Result<void> across(const Call& between, Deadline deadline) const;
  /// A peer that is known to be gone. Does not wait.
  [[nodiscard]] std::optional<Error> trouble() const;
};

/// Up to here a message between hosts takes as long as an empty one.
inline constexpr std::size_t small_between_hosts = 16 << 10;

/// Pieces begin so far apart: at cache lines.
inline constexpr std::size_t pieces_apart = 128;

/// What the numbers of a call are between hosts, and how they are added up before the last step.
[[nodiscard]] DataType travelling_type(const Call& call);
[[nodiscard]] ReduceOp travelling_op(const Call& call);

}  // namespace ddrun::collectives
