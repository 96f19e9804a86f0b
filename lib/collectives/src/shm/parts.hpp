#pragma once

#include <cstddef>
#include <span>

#include "ddrun/collectives/communicator.hpp"
#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

/// The same part of every block of a call, and how it lies where a rank gives it to the others.
struct Part {
  std::size_t begin = 0;   ///< element of each block
  std::size_t count = 0;   ///< elements
  std::size_t stride = 0;  ///< bytes from one block to the next in such a place
};

/// Whether other ranks need `rank`'s input.
[[nodiscard]] bool gives(const Call& call, int rank);
/// Whether `rank` has an output.
[[nodiscard]] bool gets(const Call& call, int rank);

/// Copies what the others need of this rank's input to `place`: of calls with a block for every rank, each of theirs.
void give(const Call& call, int rank, int size, const Part& part, std::byte* place);

/// Makes this rank's output of what the others have given; `places` are all ranks', of which its own is not read.
/// `from` is room for a pointer per rank.
void take(const Call& call, int rank, const Part& part, std::span<const std::byte* const> places,
          std::span<const void*> from, Stores stores);

/// Whether the results of a call, all ranks' together, stay in no cache and so need not be read into one. Results of
/// reductions in place lie where inputs were just read.
[[nodiscard]] Stores stores_of(const Call& call, int size, bool in_place);

}  // namespace ddrun::collectives
