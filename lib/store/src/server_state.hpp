#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "key_space.hpp"
#include "wire.hpp"

namespace ddrun::store {

/// What all clients of a server share; belongs to the server's one thread.
struct ServerState {
  KeySpace space;

  std::array<std::uint64_t, wire::opcode_count> requests{};  ///< whole ones, by wire::Opcode
  std::uint64_t refused = 0;                                 ///< connections ended because of what they sent

  std::size_t memory_limit = 0;  ///< of keys, waits and buffers together, bytes; 0 for none
  std::size_t buffered = 0;      ///< what connections hold of unfinished requests and of replies not taken yet, bytes

  /// Why the last client was refused, in words for whoever runs the server; empty if it was no client of ours at all.
  std::string trouble;

  [[nodiscard]] std::size_t memory() const { return space.memory() + buffered; }
  [[nodiscard]] bool has_room(std::size_t more) const { return memory_limit == 0 || memory() + more <= memory_limit; }
};

}  // namespace ddrun::store
