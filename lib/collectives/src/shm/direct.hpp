#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "shm/mover.hpp"
#include "shm/segment.hpp"

namespace ddrun::collectives {

/// A rank's buffers in a call, as addresses of the accessing rank.
struct PeerBuffers {
  RankAddress in{};
  RankAddress out{};
  bool shared_in = false;  ///< in the segment, which every rank has mapped
  bool shared_out = false;
  Partners partners{};

  [[nodiscard]] bool in_place() const { return in == out; }
};

/// Moves data directly from inputs to outputs; all ranks share the work. Does not block: every rank calls run() between
/// two barriers.
///
/// With cross-process copies one end is always the calling rank's own memory, so that the data is copied once: a root
/// writes its share to every rank, the other ranks read theirs.
class DirectTransfer {
 public:
  /// `mover` must outlive it.
  DirectTransfer(Mover& mover, int rank, int size);

  /// Whether peers access a buffer of `rank` that is not in the segment.
  [[nodiscard]] static bool is_private(const Call& call, int rank, const PeerBuffers& buffers);
  /// Whether direct transfer is possible at all: an exchange must be in place on all ranks or on none. Equal on all
  /// ranks, like any_private().
  [[nodiscard]] bool is_possible(const Call& call, std::span<const PeerBuffers> buffers) const;
  /// Whether peers access a private buffer of any rank.
  [[nodiscard]] bool any_private(const Call& call, std::span<const PeerBuffers> buffers) const;
  /// Moves this rank's share. `cross_process`: private memory of peers is accessible; the Mover records failures.
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
