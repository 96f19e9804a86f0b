#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "back_ends.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "two_level/levels.hpp"
#include "two_level/work.hpp"

namespace ddrun::collectives {

/// Collectives of several hosts with several ranks each: through shared memory inside a host, over TCP between hosts.
///
/// Ranks of equal local rank are a column, with a TCP communicator of its own, if every host has such a rank. What is
/// reduced or sent from one to all goes as slices (SliceWork), what consists of blocks as blocks (BlockWork), all
/// columns at the same time. Large blocks of gather, scatter and all_to_all go straight from rank to rank between hosts
/// (StraightWork), and so does a send_recv (MessageWork). TwoLevelPlan says from which size on.
///
/// Half and bfloat16 travel between hosts as float, so that they are rounded once.
///
/// Blocks for so many ranks that the team's memory has no room for an element of each go over TCP between all ranks.
class TwoLevelCommunicator final : public Communicator {
 public:
  /// Blocks until all ranks are connected; arguments are equal on all of them but for the group's rank and address.
  /// Without a plan it follows from what is measured.
  [[nodiscard]] static Result<std::unique_ptr<Communicator>> connect(const Group& group, const HostGroups& hosts,
                                                                     const std::vector<HostIdentity>& all,
                                                                     const CommunicatorOptions& options,
                                                                     Deadline deadline,
                                                                     const std::optional<TwoLevelPlan>& plan = {});

  [[nodiscard]] std::string_view name() const override { return "shm+tcp"; }
  [[nodiscard]] std::string details() const override;
  [[nodiscard]] std::optional<Error> trouble() override { return levels_.trouble(); }
  [[nodiscard]] std::string lacks(Collective collective, DataType type, ReduceOp op, bool in_place) const override;
  [[nodiscard]] std::span<std::byte> send_buffer() override { return levels_.team->buffer(0); }
  [[nodiscard]] std::span<std::byte> recv_buffer() override { return levels_.team->buffer(1); }

 private:
  TwoLevelCommunicator(Group group, Levels levels);

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override;
  [[nodiscard]] Result<void> run_levels(const Call& call, Deadline deadline);
  [[nodiscard]] bool goes_straight(const Call& call) const;
  [[nodiscard]] Result<void> meet_all(const Call& call, Deadline deadline);

  Group group_;
  Levels levels_;
  SliceWork slices_;
  BlockWork blocks_;
  StraightWork straight_;
  MessageWork messages_;
};

/// The row of this back end: several hosts, of which one at least has several ranks.
[[nodiscard]] Suits suits_two_level(const Ranks& ranks);
[[nodiscard]] Result<Chosen> connect_two_level(const Ranks& ranks, Deadline deadline);

}  // namespace ddrun::collectives
