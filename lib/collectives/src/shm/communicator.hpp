#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "back_ends.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "shm/barrier.hpp"
#include "shm/direct.hpp"
#include "shm/mover.hpp"
#include "shm/segment.hpp"
#include "shm/staging.hpp"

namespace ddrun::collectives {

/// Collectives through a segment that all ranks of one machine have mapped.
///
/// * Inputs of up to 32 bytes travel in the Line that announces the call, up to a few KiB in a slot beside it. Every
///   rank reads and reduces all inputs itself. One barrier.
/// * Larger data in the segment is moved directly from inputs to outputs (DirectTransfer). Two barriers, no extra copy.
/// * Larger private data is moved directly too, by cross-process copies (Mover), if all ranks may access each other's
///   memory, which is probed at the start. A rank whose call fails waits for about a second for peers that access its
///   memory. Memory that the kernel cannot copy, such as a device's, fails the call on all ranks.
/// * Other private data is copied through the segment part by part (Staging).
class ShmCommunicator final : public Communicator {
 public:
  /// Equal on all ranks.
  struct Options {
    std::size_t buffer_bytes = 0;
    bool oversubscribed = false;  ///< more ranks than processors
    PrivateCopy private_copy = PrivateCopy::automatic;
  };

  /// `segment` has the Layout of the group, and what precedes the buffers is reserved. Reserves this rank's memory and
  /// starts to watch the peers; `pids` are those of all ranks.
  [[nodiscard]] static Result<std::unique_ptr<ShmCommunicator>> start(std::shared_ptr<Segment> segment, int rank,
                                                                      const std::vector<int>& pids,
                                                                      const Options& options);
  /// Probes whether all ranks can access each other's private memory. Call on every rank after all have started; blocks
  /// until all have called. Fails with `unsupported` if they cannot and PrivateCopy::cross_process is requested.
  [[nodiscard]] Result<void> probe_private_access(Deadline deadline);
  ~ShmCommunicator() override;

  [[nodiscard]] std::string_view name() const override { return "shm"; }
  [[nodiscard]] std::string details() const override;
  [[nodiscard]] std::optional<Error> async_error() override;
  [[nodiscard]] std::span<std::byte> send_buffer() override;
  [[nodiscard]] std::span<std::byte> recv_buffer() override;

 private:
  ShmCommunicator(std::shared_ptr<Segment> segment, int rank, std::vector<int> pids, const Options& options);

  [[nodiscard]] Result<void> run(const Call& call, Deadline deadline) override;
  [[nodiscard]] Result<void> run_small(const Call& call, bool in_lines, Deadline deadline);
  [[nodiscard]] Result<void> run_large(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> run_direct_or_staged(const Call& call, Deadline deadline);
  /// Whether this call's private memory is copied across processes. Depends on no peer.
  [[nodiscard]] bool uses_cross_process(const Call& call) const;
  /// A rank could not access the memory of another.
  struct AccessFailure {
    int by = 0;
    Mover::Failure failure;

    [[nodiscard]] std::string describe() const;
  };
  /// begin_work() precedes access to other ranks' private memory; false: do not access it. end_work() is the barrier
  /// after it and returns the first failure by rank, the same on all ranks.
  [[nodiscard]] bool begin_work();
  [[nodiscard]] Result<std::optional<AccessFailure>> end_work(const std::optional<Mover::Failure>& failure,
                                                              Deadline deadline);
  /// Waits until no peer accesses this rank's memory, then returns `error`.
  [[nodiscard]] tl::unexpected<Error> abandon(Error error);
  [[nodiscard]] std::atomic<std::uint32_t>& working(std::size_t rank) const;
  template <class T = std::byte>
  [[nodiscard]] T* at(std::size_t offset) const;
  [[nodiscard]] std::uint64_t offset_of(const std::byte* data, std::size_t bytes) const;
  [[nodiscard]] RankAddress address_of(int rank, std::uint64_t offset, std::uint64_t address) const;
  [[nodiscard]] PeerBuffers peer_buffers(int rank) const;
  [[nodiscard]] Result<void> announce(const Call& call, Deadline deadline);
  [[nodiscard]] Result<void> compare_peers() const;

  std::shared_ptr<Segment> segment_;
  Layout layout_;
  ShmBarrier barrier_;
  std::vector<int> pids_;
  PrivateCopy private_copy_;
  bool cross_process_ = false;  ///< all ranks can access all others' private memory
  std::string staged_reason_;   ///< why private memory is staged
  AccessProbe probe_;
  std::vector<AccessProbe::Handle> peer_probes_;
  std::uint32_t work_count_ = 0;  ///< number of calls with access to private memory; equal on all ranks
  bool at_work_ = false;          ///< from begin_work() to the barrier of end_work()
  std::optional<PtraceGrant> ptrace_grant_;
  Mover mover_;
  DirectTransfer direct_;
  Staging staging_;
  std::vector<PeerBuffers> peer_buffers_;
  std::vector<const void*> from_;
  std::vector<const std::byte*> places_;
  PeerWatch watch_;  ///< last member: it stops before what it reports to is destroyed
};

}  // namespace ddrun::collectives
