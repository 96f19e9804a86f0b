#pragma once

#include <thread>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "shm/layout.hpp"

namespace ddrun::collectives {

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
