#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "hosts.hpp"
#include "shm/gate.hpp"
#include "shm/segment.hpp"

namespace ddrun::collectives {

/// The ranks of one host of several: the memory that they share and where they wait for each other. All errors name
/// ranks of the whole group.
class TwoLevelTeam {
 public:
  /// Bytes of the places through which private memory is read and written.
  static constexpr std::size_t team_piece = std::size_t{2} << 20;
  /// Most bytes of an error's words that the team keeps.
  static constexpr std::size_t error_bytes = 1024;

  /// Address space for the team of a host with so many ranks.
  [[nodiscard]] static std::size_t segment_bytes(int ranks, std::size_t buffer_bytes);

  /// `segment` has that size. Reserves this rank's memory and starts to watch the others.
  [[nodiscard]] static Result<std::unique_ptr<TwoLevelTeam>> start(std::shared_ptr<Segment> segment,
                                                                   std::vector<int> ranks, int local_rank,
                                                                   const std::vector<HostIdentity>& all,
                                                                   std::size_t buffer_bytes);
  TwoLevelTeam(const TwoLevelTeam&) = delete;
  TwoLevelTeam& operator=(const TwoLevelTeam&) = delete;
  /// A rank that still waits for this one learns that it is gone.
  ~TwoLevelTeam();

  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int local_rank() const { return local_rank_; }
  /// Of the whole group, by local rank.
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  [[nodiscard]] std::span<std::byte> buffer(unsigned which) const;

  /// Waits until all have come here.
  [[nodiscard]] Result<void> meet(Deadline deadline);
  /// The same, and compares the calls that they come with.
  [[nodiscard]] Result<void> announce(const Call& call, Deadline deadline);

  /// What one of the team uses in the call that was announced last, if the others can reach it. Until the next meet().
  struct Reach {
    const std::byte* in = nullptr;  ///< null: in private memory, or nothing
    std::byte* out = nullptr;
    Partners partners{};  ///< of a send_recv
  };
  [[nodiscard]] Reach reach(int local_rank) const;
  /// Whether `data` is in the shared memory.
  [[nodiscard]] bool shares(const std::byte* data, std::size_t bytes) const;

  /// team_piece bytes: what `local_rank` shows of its private memory.
  [[nodiscard]] std::byte* shown(int local_rank) const;
  /// team_piece bytes: results for those whose memory is private.
  [[nodiscard]] std::byte* results() const;

  /// The failure that any of the team kept first.
  [[nodiscard]] std::optional<Error> kept() const;
  /// Keeps it, unless one is kept already; gives back what is kept.
  [[nodiscard]] Error keep(const Error& error);
  [[nodiscard]] std::optional<Error> trouble() const;

 private:
  struct Layout;
  struct Note;
  TwoLevelTeam(std::shared_ptr<Segment> segment, std::vector<int> ranks, int local_rank, int group_size,
               std::size_t buffer_bytes, bool crowded);
  template <class T = std::byte>
  [[nodiscard]] T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(segment_->data() + offset);
  }
  [[nodiscard]] std::uint64_t offset_of(const std::byte* data, std::size_t bytes) const;

  std::shared_ptr<Segment> segment_;
  std::vector<int> ranks_;
  int local_rank_;
  int group_size_;
  std::size_t buffer_bytes_;
  Gate gate_;
  PeerWatch watch_;  ///< last: it ends before what it reports to
};

}  // namespace ddrun::collectives
