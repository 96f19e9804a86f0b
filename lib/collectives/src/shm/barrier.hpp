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

/// Barrier of all ranks in shared memory: no rank leaves phase n before all have arrived at it.
///
/// A waiting rank spins on the peers' lines if every rank has its own processor, then yields, then sleeps on a futex
/// that the last rank to arrive wakes. If oversubscribed, it yields at once, unless no missing rank last ran on its
/// processor. Used by one thread per rank.
class ShmBarrier {
 public:
  /// `lines` has two per rank. `oversubscribed`: more ranks than processors; equal on all ranks.
  ShmBarrier(Control& control, Line* lines, int rank, int size, bool oversubscribed);

  /// The line to fill in before wait(), for the peers to read after it.
  [[nodiscard]] Line& own_line() { return line(rank_, phase_ + 1); }
  /// The line that `rank` wrote before the last barrier. Valid until the next wait().
  [[nodiscard]] const Line& line_of(int rank) const { return line(rank, phase_); }
  /// The parity (0 or 1) of the next barrier, to double-buffer other memory like the lines.
  [[nodiscard]] unsigned next_parity() const { return (phase_ + 1) & 1U; }

  /// Arrives and blocks until all ranks have. `timeout` names the missing ranks, `connection_lost` the exited one.
  [[nodiscard]] Result<void> wait(Deadline deadline);

 private:
  [[nodiscard]] Line& line(int rank, std::uint32_t phase) const {
    return lines_[2 * static_cast<std::size_t>(rank) + (phase & 1U)];
  }
  [[nodiscard]] bool has_arrived(int rank) const;
  [[nodiscard]] std::uint32_t expected_arrivals() const { return phase_ * static_cast<std::uint32_t>(size_); }
  [[nodiscard]] int find_missing();
  [[nodiscard]] bool all_arrived();
  [[nodiscard]] bool spin(std::chrono::nanoseconds duration);
  [[nodiscard]] bool must_yield();
  [[nodiscard]] bool spin_then_yield();
  [[nodiscard]] Result<void> sleep(Deadline deadline);
  [[nodiscard]] tl::unexpected<Error> timeout_error() const;

  Control& control_;
  Line* lines_;
  int rank_;
  int size_;
  bool oversubscribed_;
  std::uint32_t phase_ = 0;
  std::chrono::nanoseconds spin_time_{};  ///< adapted to recent success of spinning
  int first_missing_ = 0;                 ///< all ranks below this one have arrived at phase_
};

void wake_all(WaitQueue& queue);

/// An error that names the first rank reported as lost; none if there is none.
[[nodiscard]] std::optional<Error> lost_rank(const Control& control);

/// Records `rank` as lost, unless another was recorded before, and wakes all sleepers.
void report_lost(Control& control, int rank);

/// Detects the exit of peer processes on this machine: a thread polls their pidfds and calls report_lost() for the
/// first one that exits. Without pidfds (Linux before 5.3, some sandboxes) it reads /proc/PID/stat of the first peer
/// each 100 ms: if the first is the next rank, each rank that exits is the first peer of one, as long as any lives.
class PeerWatch {
 public:
  struct Peer {
    int rank;
    int pid;
  };

  /// `control` must outlive this object. Peers within this process (threads as ranks) are skipped. Fails with
  /// `unavailable` if a peer has exited or cannot be watched.
  [[nodiscard]] Result<void> start(Control& control, const std::vector<Peer>& peers);

  PeerWatch() = default;
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;
  ~PeerWatch();

 private:
  void run(Control& control);

  struct Watched {
    Peer peer;
    UniqueFd pidfd;
    std::uint64_t start_time;  ///< used without pidfd
  };

  std::vector<Watched> watched_;
  Pipe stop_;
  std::thread thread_;
};

}  // namespace ddrun::collectives
