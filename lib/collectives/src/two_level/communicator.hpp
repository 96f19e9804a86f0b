#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "back_ends.hpp"
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
  /// The part of a call that goes from host to host, but for its memory.
  [[nodiscard]] Call between_hosts(const Call& call, std::size_t count) const;
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

/// all_gather, gather, scatter, reduce_scatter and all_to_all: the blocks of a host are dealt to its ranks that are in
/// a column, and each column carries those that it was dealt on every host, all columns at the same time. What belongs
/// together travels as one message: of all_to_all, all that the ranks of a host have for the ranks of another one that
/// were dealt to a column. Where a host has fewer ranks than another, its messages have room that no rank reads. Small
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

/// send_recv: what comes from a rank of the same host is read from its memory, the rest goes over TCP between the two
/// ranks, while others of the host do the same. Every rank takes part in the meetings of its host, whichever its
/// partners are, and sends and receives in one step, so that no order of partners can block.
class MessageWork final : public LevelWork {
 public:
  using LevelWork::LevelWork;

  /// Whether partners of this host do not mean each other: then run() has failed and said so.
  [[nodiscard]] bool partners_differ() const { return partners_differ_; }

 private:
  [[nodiscard]] bool reads(const Call& /*call*/, int /*rank*/) const override { return true; }
  [[nodiscard]] bool writes(const Call& /*call*/, int /*rank*/) const override { return false; }
  [[nodiscard]] bool moves_at_once(const Call& /*call*/) const override { return true; }
  [[nodiscard]] std::size_t most(const Call& call) const override;
  [[nodiscard]] Result<void> work(const Call& call, const Piece& piece, Deadline deadline) override;
  [[nodiscard]] Result<void> compare_partners() const;
  [[nodiscard]] bool is_here(int rank) const { return levels_.hosts.host_of(rank) == levels_.host; }

  bool partners_differ_ = false;
};

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

}  // namespace ddrun::collectives
