#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "shm/mover.hpp"
#include "shm/segment.hpp"

namespace ddrun::collectives {

/// What a rank uses in a call, as another one reaches it.
struct PeerBuffers {
  RankAddress in{};
  RankAddress out{};
  bool shared_in = false;  ///< in the segment, where every rank reaches it
  bool shared_out = false;
  Partners partners{};

  [[nodiscard]] bool in_place() const { return in == out; }
};

/// Collectives whose data goes from where it is to where it belongs, and all ranks share the work. No rank waits here:
/// between two gates, each rank calls work().
///
/// A rank that moves what it reaches only through the system does so from or to its own memory, so that there is one
/// copy: a root hands out its share of everything, the others fetch theirs.
class DirectTransfer {
 public:
  /// `mover` outlives it.
  DirectTransfer(Mover& mover, int rank, int size);

  /// Whether the others have to reach something of `rank` that is not in the segment.
  [[nodiscard]] static bool is_private(const Call& call, int rank, const PeerBuffers& buffers);
  /// Whether the call can be made like this if the ranks reach everything: not if it exchanges data in place on some
  /// ranks and out of place on others. The same on all ranks, as the next.
  [[nodiscard]] bool is_possible(const Call& call, std::span<const PeerBuffers> buffers) const;
  /// Whether any rank has something private that the others have to reach.
  [[nodiscard]] bool any_private(const Call& call, std::span<const PeerBuffers> buffers) const;
  /// This rank's share. `across`: the ranks reach each other's private memory, too; what was not to be reached, the
  /// Mover knows.
  void run(const Call& call, std::span<const PeerBuffers> buffers, bool cross_process);

 private:
  struct Share {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  [[nodiscard]] Share share_of(std::size_t elements, std::size_t element, std::size_t worker,
                               std::size_t workers) const;
  void reduce(const Call& call, std::span<const PeerBuffers> buffers);
  void reduce_scatter(const Call& call, std::span<const PeerBuffers> buffers);
  void broadcast(const Call& call, std::span<const PeerBuffers> buffers, bool cross_process);
  void all_gather(const Call& call, std::span<const PeerBuffers> buffers);
  void gather_or_scatter(const Call& call, std::span<const PeerBuffers> buffers, bool cross_process);
  void all_to_all(const Call& call, std::span<const PeerBuffers> buffers);
  void send_recv(const Call& call, std::span<const PeerBuffers> buffers);

  Mover& mover_;
  int rank_;
  int size_;
  std::vector<RankAddress> from_;
  std::vector<RankAddress> places_;
};

}  // namespace ddrun::collectives
