#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "shm/mover.hpp"
#include "shm/segment.hpp"

namespace ddrun::collectives {

/// What a rank uses in a call, as another one reaches it.
struct Seen {
  Place in{};
  Place out{};
  bool shared_in = false;  ///< in the segment, where every rank reaches it
  bool shared_out = false;
  Partners peers{};

  [[nodiscard]] bool in_place() const { return in == out; }
};

/// Collectives whose data goes from where it is to where it belongs, and all ranks share the work. No rank waits here:
/// between two gates, each rank calls work().
///
/// A rank that moves what it reaches only through the system does so from or to its own memory, so that there is one
/// copy: a root hands out its share of everything, the others fetch theirs.
class DirectWork {
 public:
  /// `mover` outlives it.
  DirectWork(Mover& mover, int rank, int size);

  /// Whether the others have to reach something of `rank` that is not in the segment.
  [[nodiscard]] static bool is_private(const Call& call, int rank, const Seen& seen);
  /// Whether the call can be made like this if the ranks reach everything: not if it exchanges data in place on some
  /// ranks and out of place on others. The same on all ranks, as the next.
  [[nodiscard]] bool possible(const Call& call, std::span<const Seen> seen) const;
  /// Whether any rank has something private that the others have to reach.
  [[nodiscard]] bool any_private(const Call& call, std::span<const Seen> seen) const;
  /// This rank's share. `across`: the ranks reach each other's private memory, too; what was not to be reached, the
  /// Mover knows.
  void work(const Call& call, std::span<const Seen> seen, bool across);

 private:
  struct Share {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  [[nodiscard]] Share share_of(std::size_t elements, std::size_t element, std::size_t worker,
                               std::size_t workers) const;
  void reduce(const Call& call, std::span<const Seen> seen);
  void reduce_scatter(const Call& call, std::span<const Seen> seen);
  void broadcast(const Call& call, std::span<const Seen> seen, bool across);
  void all_gather(const Call& call, std::span<const Seen> seen);
  void between_root_and_others(const Call& call, std::span<const Seen> seen, bool across);
  void all_to_all(const Call& call, std::span<const Seen> seen);
  void send_recv(const Call& call, std::span<const Seen> seen);

  Mover& mover_;
  int rank_;
  int size_;
  std::vector<Place> from_;
  std::vector<Place> places_;
};

}  // namespace ddrun::collectives
