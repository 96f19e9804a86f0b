#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ddrun/collectives/communicator.hpp"
#include "shm/layout.hpp"

namespace ddrun::collectives {

/// What a rank uses in a call, as another one reaches it.
struct Seen {
  std::byte* in = nullptr;  ///< null: not in the segment
  std::byte* out = nullptr;
  Partners peers{};

  [[nodiscard]] bool in_place() const { return in != nullptr && in == out; }
};

/// Collectives whose data lies where every rank reaches it: it goes from where it is to where it belongs, and all ranks
/// share the work. Nobody waits here: between two gates, each rank calls work().
class DirectWork {
 public:
  DirectWork(int rank, int size);

  /// Whether the others have to reach something of `rank` that they cannot reach.
  [[nodiscard]] static bool out_of_reach(const Call& call, int rank, const Seen& seen);
  /// Whether the call can be made like this; the same on all ranks, whose `seen` are equal.
  [[nodiscard]] bool possible(const Call& call, std::span<const Seen> seen) const;
  /// This rank's share.
  void work(const Call& call, std::span<const Seen> seen);

 private:
  struct Share {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  [[nodiscard]] Share share_of(std::size_t elements, std::size_t element, std::size_t worker,
                               std::size_t workers) const;
  void reduce(const Call& call, std::span<const Seen> seen);
  void reduce_scatter(const Call& call, std::span<const Seen> seen);
  void broadcast(const Call& call, std::span<const Seen> seen);
  void all_gather(const Call& call, std::span<const Seen> seen);
  void between_root_and_others(const Call& call, std::span<const Seen> seen);
  void all_to_all(const Call& call, std::span<const Seen> seen);
  void send_recv(const Call& call, std::span<const Seen> seen);

  int rank_;
  int size_;
  std::vector<const void*> from_;
  std::vector<void*> results_;
  std::vector<std::byte*> places_;
};

}  // namespace ddrun::collectives
