#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "shm/segment.hpp"

namespace ddrun::collectives {

/// The meeting point of all ranks in shared memory: no rank passes gate n before all have arrived there.
///
/// Waiting starts with watching the peers' lines when every rank can have a processor of its own, goes on with
/// giving the processor away, and ends asleep on a futex that the last to arrive rings. Where ranks share processors,
/// one that waits gives its own away at once, unless none of the missing ones was last seen there.
class ShmBarrier {
 public:
  /// `lines` are two per rank. `crowded`: more ranks than processors; equal on all ranks.
  ShmBarrier(Control& control, Line* lines, int rank, int size, bool oversubscribed);

  /// The line to fill in before pass(): what the peers read after it.
  [[nodiscard]] Line& own_line() { return line(rank_, phase_ + 1); }
  /// What `rank` wrote before it arrived at the gate that was passed last. Valid until the next pass().
  [[nodiscard]] const Line& line_of(int rank) const { return line(rank, phase_); }
  /// 0 or 1 in turn, for other memory that is used like the lines. Before pass(): of the gate to come.
  [[nodiscard]] unsigned next_parity() const { return (phase_ + 1) & 1U; }

  /// Arrives and waits for the others. `timeout` names the ranks that did not come, `connection_lost` the one
  /// that is gone.
  [[nodiscard]] Result<void> wait(Deadline deadline);

 private:
  [[nodiscard]] Line& line(int rank, std::uint32_t phase) const {
    return lines_[2 * static_cast<std::size_t>(rank) + (phase & 1U)];
  }
  [[nodiscard]] bool has_arrived(int rank) const;
  [[nodiscard]] std::uint32_t expected_arrivals() const { return phase_ * static_cast<std::uint32_t>(size_); }
  [[nodiscard]] int first_missing();
  [[nodiscard]] bool all_arrived();
  [[nodiscard]] bool spin(std::chrono::nanoseconds duration);
  [[nodiscard]] bool missing_rank_shares_processor();
  [[nodiscard]] bool spin_then_yield();
  [[nodiscard]] Result<void> sleep(Deadline deadline);
  [[nodiscard]] tl::unexpected<Error> timeout_error() const;

  Control& control_;
  Line* lines_;
  int rank_;
  int size_;
  bool oversubscribed_;
  std::uint32_t phase_ = 0;
  std::chrono::nanoseconds spin_time_{};  ///< how long watching has been worth it lately
  int arrived_below_ = 0;                 ///< ranks below this one have arrived at gate_
};

/// Wakes every rank that sleeps at a gate.
void wake_all(WaitQueue& wait_queue);

/// The rank that was noted as gone first, as an error of a rank that needs it.
[[nodiscard]] std::optional<Error> lost_rank(const Control& control);

/// Notes that `rank` is gone, unless another went before it, and wakes all.
void report_lost(Control& control, int rank);

/// Notices the end of peer processes of this machine: a thread that sleeps on their pidfds, reports the first one
/// that ends through `report_lost`, and costs nothing until then.
class PeerWatch {
 public:
  struct Peer {
    int rank;
    int pid;
  };

  /// `control` must outlive the watch. Peers that are this process itself (threads as ranks) are not watched.
  /// Fails with `unavailable` where there are no pidfds (Linux before 5.3, some sandboxes) or a peer is gone.
  [[nodiscard]] Result<void> start(Control& control, const std::vector<Peer>& peers);

  PeerWatch() = default;
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;
  ~PeerWatch();

 private:
  void run(Control& control);

  std::vector<int> ranks_;
  std::vector<UniqueFd> pidfds_;
  Pipe stop_;
  std::thread thread_;
};

}  // namespace ddrun::collectives
