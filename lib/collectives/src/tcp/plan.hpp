#pragma once

#include <cstddef>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

class Peers;
struct Workspace;

/// What messages between these ranks cost: `latency` + bytes * `per_byte`, both ways at once (Hockney's alpha and
/// beta), and bytes * `per_byte_reduced` for a partial result (gamma). Microseconds.
struct Costs {
  double latency = 0;
  double per_byte = 0;
  double per_byte_reduced = 0;
};

/// Up to how many bytes which algorithm is taken. The same on all ranks.
struct Plan {
  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

  Costs costs;
  std::size_t doubling = 0;    ///< all_reduce: of an input; also reduce_scatter: of all blocks
  std::size_t halving = 0;     ///< all_reduce above that; then the ring
  std::size_t tree = 0;        ///< broadcast and reduce, of an input; then the chain
  std::size_t block_tree = 0;  ///< gather and scatter, of a block; then directly
  std::size_t all_gather = 0;  ///< all_gather by doubling, of a block; then the ring

  /// The bytes of a chain's pieces that take the least time for `bytes` in all.
  [[nodiscard]] std::size_t piece(std::size_t bytes, int ranks) const;
  /// "all_reduce: recursive doubling up to 16 KiB, then ring; …"
  [[nodiscard]] std::string in_words() const;
};

/// The largest power of two up to which `small` takes no longer than `large`; both are functions of a number of bytes
/// and grow steadily. 0: none. unlimited: up to sizes that do not occur.
template <class Small, class Large>
std::size_t crossover(const Small& small, const Large& large) {
  std::size_t last = 0;
  for (std::size_t bytes = 64; bytes <= std::size_t{1} << 30U; bytes *= 2) {
    const auto size = static_cast<double>(bytes);
    if (small(size) > large(size)) return last;
    last = bytes;
  }
  return Plan::unlimited;
}

/// "recursive doubling up to 16 KiB, then ring": names, each with the size up to which it is taken.
[[nodiscard]] std::string in_steps(std::initializer_list<std::pair<std::string_view, std::size_t>> steps);

/// The least time for each size by the cost model of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
/// Communication Operations in MPICH", Int. J. of High Performance Computing Applications 19(1), 2005.
[[nodiscard]] Plan plan_for(const Costs& costs, int ranks);

/// Measures for some milliseconds with the neighbours in the ring; what comes back is the slowest rank's, so the same
/// everywhere. Every rank must call it. Groups of two or more.
[[nodiscard]] Result<Costs> measure_costs(Peers& peers, Workspace& ws);

}  // namespace ddrun::collectives
