#pragma once

#include <cstddef>
#include <span>

#include "ddrun/collectives/reduction.hpp"

namespace ddrun::collectives {

/// `bytes` from `from` to `to`; any alignment. Streaming: past the cache, and ordered before whatever is written next.
/// What is copied to its own place stays as it is, else they do not overlap. Of 0 bytes the pointers may be null.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores = Stores::normal);

/// The same to several places, while each part is in the cache: `from` is read from memory once.
void copy_to_all(std::span<std::byte* const> to, const std::byte* from, std::size_t bytes, Stores stores);

/// What `places[i]` holds goes to `places[i + 1]`, and from the last to the first, a small part after the other.
void rotate(std::span<std::byte* const> places, std::size_t bytes);

}  // namespace ddrun::collectives
