#pragma once

#include <memory>
#include <vector>

#include "ddrun/collectives/all_reduce.hpp"
#include "peer_watch.hpp"
#include "shm_gate.hpp"
#include "shm_segment.hpp"
#include "sum_kernels.hpp"

namespace ddrun::collectives {

/// All-reduce through memory that every rank of one machine has mapped.
///
/// * Up to 32 bytes travel in the line that announces them, and up to a few KiB in a slot beside it: every rank
///   reads all ranks' data and adds it up itself. One gate.
/// * Larger data that lies in the segment: each rank adds up its own slice of all inputs and writes it to all
///   outputs. Two gates and no copy.
/// * Larger data elsewhere goes through a staging area in the same way, piece by piece.
class ShmAllReduce final : public AllReduce {
 public:
  /// How many bytes a group needs. The same on every rank.
  [[nodiscard]] static std::size_t segment_bytes(int size, std::size_t buffer_count);

  /// `segment` has that size. Reserves this rank's memory and starts to watch the peers; `pids` are all ranks'.
  /// `crowded`: more ranks than processors; equal on all ranks.
  [[nodiscard]] static Result<std::unique_ptr<AllReduce>> start(std::shared_ptr<Segment> segment, int rank,
                                                                const std::vector<int>& pids, std::size_t buffer_count,
                                                                bool crowded);
  ~ShmAllReduce() override;

  [[nodiscard]] std::string_view name() const override { return "shm"; }
  [[nodiscard]] std::span<float> send_buffer() override;
  [[nodiscard]] std::span<float> recv_buffer() override;
  [[nodiscard]] Result<void> sum(std::span<const float> in, std::span<float> out, Deadline deadline) override;

 private:
  struct Layout;
  ShmAllReduce(std::shared_ptr<Segment> segment, int rank, int size, std::size_t buffer_count, bool crowded);

  template <class T>
  [[nodiscard]] T* at(std::size_t offset) const;
  [[nodiscard]] std::uint64_t offset_of(const float* data, std::size_t count) const;
  [[nodiscard]] Result<void> announce(std::span<const float> in, std::span<float> out, Deadline deadline);
  [[nodiscard]] Result<void> run(std::span<const float> in, std::span<float> out, Deadline deadline);
  void read_all(std::span<float> out);
  [[nodiscard]] Result<void> sum_slices(std::size_t count, Deadline deadline);
  [[nodiscard]] Result<void> sum_staged(std::span<const float> in, std::span<float> out, Deadline deadline);
  void sum_my_slice(std::size_t count, Stores stores);

  std::shared_ptr<Segment> segment_;
  int rank_;
  int size_;
  std::size_t buffer_count_;
  Gate gate_;
  Result<void> state_;  ///< the failure after which nothing works any more
  std::vector<const float*> from_;
  std::vector<float*> to_;
  PeerWatch watch_;  ///< last: it ends before what it reports to
};

}  // namespace ddrun::collectives
