#pragma once

#include <utility>

#include "tcp/algorithms.hpp"

namespace ddrun::collectives {

/// n parts of an array, one per rank.
class Parts {
 public:
  /// As equal as can be.
  Parts(std::size_t count, int parts) : count_(count), parts_(parts) {}

  struct Range {
    std::size_t begin = 0;
    std::size_t count = 0;
  };
  /// Of elements. Indices go round.
  [[nodiscard]] Range operator[](int index) const;
  /// Elements of the largest.
  [[nodiscard]] std::size_t largest() const { return (*this)[0].count; }

 private:
  std::size_t count_;
  int parts_;
};

/// Each part is reduced on its way round the ring, in n - 1 steps, and is finished at rank `index + shift` for part
/// `index`. `finished` is where this rank's own finished part goes. Others' parts, unfinished, are kept where they
/// belong in `on_the_way`, or in the workspace if that is null or too narrow for numbers.
[[nodiscard]] Result<void> ring_reduce_scatter(Peers& peers, Workspace& ws, const Partial& partial, const Parts& parts,
                                               int shift, const std::byte* in, std::byte* finished,
                                               std::byte* on_the_way);

/// All parts go round in n - 1 steps. At the start rank r has part r - shift of `out`.
[[nodiscard]] Result<void> ring_all_gather(Peers& peers, const Parts& parts, int shift, std::byte* out,
                                           std::size_t element);

}  // namespace ddrun::collectives
