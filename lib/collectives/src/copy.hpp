#pragma once

#include <cstddef>
#include <span>

#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

/// Copies `bytes`; any alignment. Streaming: non-temporal stores, ordered before later stores. `to` may equal `from`,
/// but they must not overlap otherwise. With 0 bytes the pointers may be null.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores = Stores::normal);

/// The same to several destinations, part by part through the cache, so that `from` is read from memory once.
void copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, Stores stores);

/// Moves the content of `places[i]` to `places[i + 1]`, and of the last to the first, part by part.
void rotate(std::span<std::byte* const> places, std::size_t bytes);

}  // namespace ddrun::collectives
