#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "two_level/levels.hpp"

namespace ddrun::collectives {

/// A collective in two levels. Its data goes piece by piece, the same pieces on every host: of each block the elements
/// from here to there. Who works for the others of its host reads their inputs and writes their outputs where they are;
/// what it cannot reach is copied through the team's memory, with more meetings.
class LevelWork {
 public:
  explicit LevelWork(Levels& levels) : levels_(levels), reach_(levels.team->ranks().size()) {}
  LevelWork(const LevelWork&) = delete;
  LevelWork& operator=(const LevelWork&) = delete;
  virtual ~LevelWork() = default;

  /// Blocks; see Communicator.
  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline);

 protected:
  /// Of each block, the elements [begin, begin + count).
  struct Piece {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  /// Whether others of its host read `rank`'s input, and whether they write its output.
  [[nodiscard]] virtual bool reads(const Call& call, int rank) const;
  [[nodiscard]] virtual bool writes(const Call& call, int rank) const;
  /// Whether a rank that works in place may overwrite what others still read.
  [[nodiscard]] virtual bool moves_at_once(const Call& /*call*/) const { return false; }
  /// The most elements of a piece: on all ranks the same.
  [[nodiscard]] virtual std::size_t most(const Call& call) const = 0;
  /// This rank's part of a piece. All ranks of the host do theirs between two meetings.
  [[nodiscard]] virtual Result<void> work(const Call& call, const Piece& piece, Deadline deadline) = 0;

  [[nodiscard]] const TwoLevelTeam::Reach& reach(int local_rank) const {
    return reach_[static_cast<std::size_t>(local_rank)];
  }
  /// Where an element of the piece can be read in a block of `local_rank`'s input.
  [[nodiscard]] const std::byte* input(const Call& call, int local_rank, std::size_t block, const Piece& piece,
                                       std::size_t element) const;
  /// Where it is written in the output of `local_rank` alone.
  [[nodiscard]] std::byte* output(const Call& call, int local_rank, std::size_t block, const Piece& piece,
                                  std::size_t element) const;
  /// The same of all ranks of this host that have an output, where their outputs are equal. None if none has one.
  [[nodiscard]] std::span<std::byte* const> outputs(const Call& call, std::size_t block, const Piece& piece,
                                                    std::size_t element);
  /// The reduction of what the ranks of this host have, in the type that travels.
  void reduce_here(const Call& call, std::size_t block, const Piece& piece, const Piece& part, std::byte* to);

  Levels& levels_;

 private:
  [[nodiscard]] bool is_shown(const Call& call, int rank, const std::byte* in, const std::byte* out) const;
  void show(const Call& call, const Piece& piece);
  void take(const Call& call, const Piece& piece);
  /// What the ranks of this host have to do with each other's memory in a call.
  enum class Sharing { none, where_it_is, through_the_team };
  [[nodiscard]] Sharing look(const Call& call);

  std::vector<TwoLevelTeam::Reach> reach_;  ///< of this call, by local rank
  std::vector<const void*> from_;
  std::vector<std::byte*> places_;
};

}  // namespace ddrun::collectives
