#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "two_level/host_groups.hpp"
#include "two_level/team.hpp"

namespace ddrun::collectives {

/// Collectives of several hosts with several ranks each: through shared memory inside a host, over TCP between hosts.
///
/// Ranks of equal local rank are a column, with a TCP communicator of its own, if every host has such a rank. Of what
/// is reduced or sent from one to all, each column carries a slice between the hosts, all columns at the same time: a
/// rank makes its slice of what the ranks of its host have, its column does the rest, and it writes the result to all
/// ranks of its host. Small data takes the first column alone. Data goes piece by piece, the same pieces on every host,
/// and is copied only where a rank's memory is private.
///
/// Half and bfloat16 travel between hosts as float, so that they are rounded once.
///
/// The other collectives go over TCP between all ranks.
class TwoLevelCommunicator final : public Communicator {
 public:
  /// Blocks until all ranks are connected; arguments are equal on all of them but for the group's rank and address.
  [[nodiscard]] static Result<std::unique_ptr<Communicator>> connect(const Group& group, const HostGroups& hosts,
                                                                     const std::vector<HostIdentity>& all,
                                                                     const CommunicatorOptions& options,
                                                                     Deadline deadline);

  [[nodiscard]] std::string_view name() const override { return "shm+tcp"; }
  [[nodiscard]] std::string details() const override;
  [[nodiscard]] std::optional<Error> trouble() override;
  [[nodiscard]] std::string lacks(Collective collective, DataType type, ReduceOp op, bool in_place) const override;
  [[nodiscard]] std::span<std::byte> send_buffer() override { return team_->buffer(0); }
  [[nodiscard]] std::span<std::byte> recv_buffer() override { return team_->buffer(1); }

 private:
  /// The elements [begin, begin + count) of a call that travel together.
  struct Piece {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  TwoLevelCommunicator(Group group, HostGroups hosts);

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override;
  [[nodiscard]] Result<void> run_levels(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> meet_all(Deadline deadline);
  [[nodiscard]] Result<void> work(const Call& call, const Piece& piece, int columns, Deadline deadline);
  void gather_here(const Call& call, const Piece& slice, std::size_t in_piece);
  [[nodiscard]] Result<void> across(const Call& call, std::size_t count, Deadline deadline);
  void spread(const Call& call, const Piece& slice, std::size_t in_piece);
  void show(const Call& call, const Piece& piece);
  void take(const Call& call, const Piece& piece);
  [[nodiscard]] const std::byte* source(const Call& call, int local_rank, const Piece& slice,
                                        std::size_t in_piece) const;

  Group group_;
  HostGroups hosts_;
  int host_;
  std::vector<int> column_ranks_;  ///< of the whole group, by host
  std::unique_ptr<TwoLevelTeam> team_;
  std::shared_ptr<Communicator> column_;    ///< none if this rank is in no column
  std::shared_ptr<Communicator> flat_;      ///< all ranks
  std::vector<TwoLevelTeam::Reach> reach_;  ///< of this call, by local rank
  std::vector<const void*> from_;
  std::vector<std::byte> slice_;  ///< what the column works on, in the accumulator's type
};

}  // namespace ddrun::collectives
