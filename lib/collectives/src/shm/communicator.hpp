#pragma once

#include <memory>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "shm/direct.hpp"
#include "shm/gate.hpp"
#include "shm/layout.hpp"
#include "shm/peer_watch.hpp"
#include "shm/segment.hpp"
#include "shm/staging.hpp"

namespace ddrun::collectives {

/// Collectives through memory that every rank of one machine has mapped.
///
/// * Up to 32 bytes travel in the line that announces them, and up to a few KiB in a slot beside it: whoever needs
///   them reads them there, and reduces all ranks' data itself. One gate.
/// * Larger data that lies in the segment goes from where it is to where it belongs (DirectWork). Two gates, no copy
///   on the way.
/// * Larger data elsewhere goes through a staging area, part by part (Staging).
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
  [[nodiscard]] std::string details() const override { return segment_->pages(); }
  [[nodiscard]] std::optional<Error> trouble() override;
  [[nodiscard]] std::span<std::byte> send_buffer() override;
  [[nodiscard]] std::span<std::byte> recv_buffer() override;

 private:
  ShmCommunicator(std::shared_ptr<Segment> segment, int rank, int size, std::size_t buffer_bytes, bool crowded);

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override;
  [[nodiscard]] Result<void> run_small(const Call& call, bool in_lines, Deadline deadline);
  [[nodiscard]] Result<void> run_large(const Call& call, Deadline deadline);
  template <class T = std::byte>
  [[nodiscard]] T* at(std::size_t offset) const;
  [[nodiscard]] std::uint64_t offset_of(const std::byte* data, std::size_t bytes) const;
  [[nodiscard]] Seen seen_of(int rank) const;
  [[nodiscard]] Result<void> announce(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> compare_peers() const;

  std::shared_ptr<Segment> segment_;
  Layout layout_;
  Gate gate_;
  DirectWork direct_;
  Staging staging_;
  std::vector<Seen> seen_;
  std::vector<const void*> from_;
  std::vector<const std::byte*> places_;
  PeerWatch watch_;  ///< last: it ends before what it reports to
};

}  // namespace ddrun::collectives
