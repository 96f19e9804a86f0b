#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

namespace ddrun::collectives {

/// What a group does together. `count` is that of a Call; n is the number of ranks. Blocks are of `count` elements.
enum class Collective : unsigned char {
  barrier,         ///< nobody returns before everybody has called
  all_reduce,      ///< everybody gets the reduction of all inputs
  broadcast,       ///< everybody gets the root's input
  reduce,          ///< the root gets the reduction of all inputs
  all_gather,      ///< everybody gets the inputs of all ranks, n blocks by rank
  reduce_scatter,  ///< rank r gets block r of the reduction of all inputs, which have n blocks
  gather,          ///< the root gets the inputs of all ranks, n blocks by rank
  scatter,         ///< rank r gets block r of the root's input
  all_to_all,      ///< rank r gets block r of everybody's input, n blocks by rank
  send_recv,       ///< each rank sends its input to one rank and gets the input of one rank
};

inline constexpr std::array kCollectives{Collective::barrier,  Collective::all_reduce, Collective::broadcast,
                                         Collective::reduce,   Collective::all_gather, Collective::reduce_scatter,
                                         Collective::gather,   Collective::scatter,    Collective::all_to_all,
                                         Collective::send_recv};

/// "all_reduce", "reduce_scatter", …
[[nodiscard]] std::string_view name_of(Collective collective);
/// The same back; '-' is as good as '_', and neither is needed ("allreduce", "all-to-all").
[[nodiscard]] std::optional<Collective> collective_named(std::string_view name);

/// Whether elements are reduced, so that the operation matters.
[[nodiscard]] bool reduces(Collective collective);
/// Whether one rank, the root, has another part than the others.
[[nodiscard]] bool has_root(Collective collective);

/// How many blocks a rank's input and output have. Of gather, only the root's output is used; of scatter, only the
/// root's input; of reduce, only the root's output.
struct Blocks {
  std::size_t in = 1;
  std::size_t out = 1;
};
[[nodiscard]] Blocks blocks_of(Collective collective, int ranks);

/// Bus bandwidth divided by algorithm bandwidth for `ranks` ranks, as nccl-tests defines it (doc/PERFORMANCE.md of
/// NVIDIA/nccl-tests): 2 (n - 1) / n for an all-reduce; (n - 1) / n for all_gather, reduce_scatter, gather, scatter and
/// all_to_all; 1 for broadcast, reduce and send_recv. 0 where nothing has to travel: one rank, or a barrier.
/// Algorithm bandwidth is the larger of a rank's (the root's) input and output divided by the time.
[[nodiscard]] double bus_bandwidth_factor(Collective collective, int ranks);

}  // namespace ddrun::collectives
