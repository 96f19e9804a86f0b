#pragma once

#include <vector>

#include "two_level/work.hpp"

namespace ddrun::collectives {

/// all_gather, gather, scatter, reduce_scatter and all_to_all: the blocks of a host are dealt to its ranks that are in
/// a column, and each column carries those that it was dealt on every host, all columns at the same time. What belongs
/// together travels as one message: of all_to_all, all that the ranks of a host have for the ranks of another one that
/// were dealt to a column. Where a host has fewer ranks than another, its messages have room that nobody reads. Small
/// blocks are all carried by the first column.
class BlockWork final : public LevelWork {
 public:
  using LevelWork::LevelWork;

  /// Whether the team's memory has room for a piece of all blocks; the same on every rank.
  [[nodiscard]] bool has_room(const Call& call) const { return most(call) > 0; }

 private:
  [[nodiscard]] std::size_t most(const Call& call) const override;
  [[nodiscard]] Result<void> work(const Call& call, const Piece& piece, Deadline deadline) override;
  void deal(const Call& call, const Piece& piece);
  void pack(const Call& call, const Piece& piece);
  [[nodiscard]] Result<void> across(const Call& call, const Piece& piece, Deadline deadline);
  void spread(const Call& call, const Piece& piece);
  void pack_all_to_all(const Call& call, const Piece& piece);
  void spread_all_to_all(const Call& call, const Piece& piece);
  /// Calls `body(block, place)` for each rank of `host` that was dealt to this rank's column: its block's number, and
  /// the place of that.
  template <class Body>
  void for_dealt(int host, const Body& body);
  [[nodiscard]] std::byte* slot(std::vector<std::byte>& slots, int host, int of_host) const;

  int columns_ = 1;  ///< that carry this call
  int rounds_ = 1;   ///< ranks that a column is dealt of a host at most
  int slots_ = 1;    ///< blocks between two hosts in a message
  std::size_t slot_bytes_ = 0;
  std::vector<std::byte> packed_;    ///< what the column works on: by host, slots_ blocks each
  std::vector<std::byte> received_;  ///< of an all_to_all
};

}  // namespace ddrun::collectives
