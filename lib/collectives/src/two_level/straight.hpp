#pragma once

#include "two_level/work.hpp"

namespace ddrun::collectives {

/// gather, scatter and all_to_all of large blocks: each goes once, from where it is to where it belongs. Inside a host
/// it is copied by the rank that it comes from or goes to. Between hosts it is a message of that rank: of an all_to_all
/// to the other one, else to or from a rank of the root's host that reads or writes the root's memory in the root's
/// place, so that the messages of a host's ranks go to different ones.
class StraightWork final : public LevelWork {
 public:
  using LevelWork::LevelWork;

 private:
  [[nodiscard]] bool reads(const Call& call, int rank) const override;
  [[nodiscard]] bool writes(const Call& call, int rank) const override;
  [[nodiscard]] bool moves_at_once(const Call& call) const override {
    return call.collective == Collective::all_to_all;
  }
  [[nodiscard]] std::size_t most(const Call& call) const override;
  [[nodiscard]] Result<void> work(const Call& call, const Piece& piece, Deadline deadline) override;
  [[nodiscard]] Result<void> with_root(const Call& call, const Piece& piece);
  [[nodiscard]] Result<void> for_root(const Call& call, const Piece& piece);
  [[nodiscard]] Result<void> with_all(const Call& call, const Piece& piece);
};

}  // namespace ddrun::collectives
