#pragma once

#include <memory>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "peer_watch.hpp"
#include "shm_gate.hpp"
#include "shm_segment.hpp"

namespace ddrun::collectives {

/// Collectives through memory that every rank of one machine has mapped.
///
/// * Up to 32 bytes travel in the line that announces them, and up to a few KiB in a slot beside it: every rank
///   reads all ranks' data and reduces it itself. One gate.
/// * Larger data that lies in the segment: each rank reduces its own slice of all inputs and writes it to all
///   outputs. Two gates and no copy.
/// * Larger data elsewhere goes through a staging area in the same way, piece by piece.
class ShmCommunicator final : public Communicator {
 public:
  /// How many bytes a group needs. The same on every rank.
  [[nodiscard]] static std::size_t segment_bytes(int size, std::size_t buffer_bytes);

  /// `segment` has that size. Reserves this rank's memory and starts to watch the peers; `pids` are all ranks'.
  /// `crowded`: more ranks than processors; equal on all ranks.
  [[nodiscard]] static Result<std::unique_ptr<Communicator>> start(std::shared_ptr<Segment> segment, int rank,
                                                                   const std::vector<int>& pids,
                                                                   std::size_t buffer_bytes, bool crowded);
  ~ShmCommunicator() override;

  [[nodiscard]] std::string_view name() const override { return "shm"; }
  [[nodiscard]] std::string lacks(Collective collective, DataType type, ReduceOp op, bool in_place) const override;
  [[nodiscard]] std::optional<Error> trouble() override;
  [[nodiscard]] std::span<std::byte> send_buffer() override;
  [[nodiscard]] std::span<std::byte> recv_buffer() override;

 private:
  struct Layout;
  ShmCommunicator(std::shared_ptr<Segment> segment, int rank, int size, std::size_t buffer_bytes, bool crowded);

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override;
  template <class T = std::byte>
  [[nodiscard]] T* at(std::size_t offset) const;
  [[nodiscard]] std::uint64_t offset_of(const std::byte* data, std::size_t bytes) const;
  [[nodiscard]] Result<void> announce(const Call& call, Deadline deadline);
  void read_all(const Call& call);
  [[nodiscard]] Result<void> reduce_slices(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> reduce_staged(const Call& call, Deadline deadline);
  void reduce_my_slice(const Call& call, std::size_t count, Stores stores);

  std::shared_ptr<Segment> segment_;
  std::size_t buffer_bytes_;
  Gate gate_;
  std::vector<const void*> from_;
  std::vector<void*> to_;
  PeerWatch watch_;  ///< last: it ends before what it reports to
};

}  // namespace ddrun::collectives
