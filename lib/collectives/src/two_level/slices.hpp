#pragma once

#include <vector>

#include "two_level/work.hpp"

namespace ddrun::collectives {

/// all_reduce, reduce and broadcast: each column carries a slice of every piece between the hosts, all columns at the
/// same time. A rank makes its slice of what the ranks of its host have, its column does the rest, and it writes the
/// result to all ranks of its host. Small data takes the first column alone.
class SliceWork final : public LevelWork {
 public:
  using LevelWork::LevelWork;

 private:
  [[nodiscard]] std::size_t most(const Call& call) const override;
  [[nodiscard]] Result<void> work(const Call& call, const Piece& piece, Deadline deadline) override;
  void gather_here(const Call& call, const Piece& piece, const Piece& slice);
  [[nodiscard]] Result<void> across(const Call& call, std::size_t count, Deadline deadline);
  void spread(const Call& call, const Piece& piece, const Piece& slice);

  std::vector<std::byte> slice_;  ///< what the column works on, in the type that travels
};

}  // namespace ddrun::collectives
