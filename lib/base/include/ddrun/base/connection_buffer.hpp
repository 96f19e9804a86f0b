#pragma once

#include <cstddef>
#include <string>

namespace ddrun {

/// Empties the buffer of a connection, of which there are thousands: one that grew beyond this gives its memory back.
inline void empty_buffer(std::string& buffer) {
  constexpr std::size_t kept_capacity = 512;
  if (buffer.capacity() > kept_capacity) {
    std::string().swap(buffer);
  } else {
    buffer.clear();
  }
}

}  // namespace ddrun
