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

/// Collectives through memory that every rank of one machine has mapped.
///
/// * Up to 32 bytes travel in the line that announces them, and up to a few KiB in a slot beside it: a rank that needs
///   them reads them there, and reduces all ranks' data itself. One gate.
/// * Larger data that lies in the segment goes from where it is to where it belongs (DirectWork). Two gates, no copy
///   on the way.
/// * Private data goes the same way, across, if it is large enough and all ranks may reach into each other, which they
///   try at the start: the system copies it from one process to the other (Mover). A rank whose call fails waits until
///   no rank works on its memory any more, for a second or two at most. Memory that is not the process's own, a
///   device's for example, cannot be reached like that: such a call fails on all ranks.
/// * Other private data goes through a staging area, part by part (Staging).
class ShmCommunicator final : public Communicator {
 public:
  /// Equal on all ranks.
  struct Options {
    std::size_t buffer_bytes = 0;
    bool oversubscribed = false;  ///< more ranks than processors
    PrivateCopy private_copy = PrivateCopy::automatic;
  };

  /// How many bytes a group needs. The same on every rank.
  [[nodiscard]] static std::size_t segment_bytes(int size, std::size_t buffer_bytes);

  /// `segment` has that size. Reserves this rank's memory and starts to watch the peers; `pids` are all ranks'.
  [[nodiscard]] static Result<std::unique_ptr<ShmCommunicator>> start(std::shared_ptr<Segment> segment, int rank,
                                                                      const std::vector<int>& pids,
                                                                      const Options& options);
  /// To be called once all ranks have started, by all of them, and waits for them: finds out whether they reach each
  /// other's private memory. Fails with `unsupported` if they do not and PrivateWay::across is asked for.
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
  /// Whether this call's private memory goes across. May be asked before anything is known of the others.
  [[nodiscard]] bool uses_cross_process(const Call& call) const;
  /// Which rank did not reach which other one.
  struct AccessFailure {
    int by = 0;
    Mover::Failure failure;

    [[nodiscard]] std::string describe() const;
  };
  /// Before work on other ranks' private memory: false if it must not begin. And the gate after it: the first refusal
  /// by rank, the same on all ranks.
  [[nodiscard]] bool begin_work();
  [[nodiscard]] Result<std::optional<AccessFailure>> end_work(const std::optional<Mover::Failure>& failure,
                                                              Deadline deadline);
  /// Sees to it that no rank works on this rank's memory when the caller gets `error`.
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
  bool cross_process_ = false;  ///< all ranks reach all others' private memory
  std::string staged_reason_;   ///< where they do not
  AccessProbe probe_;
  std::vector<AccessProbe::Handle> peer_probes_;
  std::uint32_t work_count_ = 0;  ///< how often this rank has worked on others' private memory: as often as they on its
  bool at_work_ = false;          ///< until the gate after that has been passed
  std::optional<PtraceGrant> ptrace_grant_;
  Mover mover_;
  DirectTransfer direct_;
  Staging staging_;
  std::vector<PeerBuffers> peer_buffers_;
  std::vector<const void*> from_;
  std::vector<const std::byte*> places_;
  PeerWatch watch_;  ///< last: it ends before what it reports to
};

}  // namespace ddrun::collectives
