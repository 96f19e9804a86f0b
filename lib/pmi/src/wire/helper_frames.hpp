#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "ddrun/base/bytes.hpp"
#include "helper_frame_types.h"

namespace ddrun::pmi {

// Frames between the agent and ddrun-pmix, over a socket: the payload's length (32 bits), the type (8), the payload.
// helper_frame_types.h says what each has in it: numbers of 64 bits in the machine's order, and texts after their
// length (32 bits).

inline constexpr std::size_t frame_head_bytes = sizeof(std::uint32_t) + 1;
inline constexpr std::size_t max_helper_payload = std::size_t{64} * 1024 * 1024;

inline void put_field(std::string& frame, std::string_view text) { bytes::put_text(frame, text); }
inline void put_field(std::string& frame, std::integral auto number) {
  bytes::put(frame, static_cast<std::int64_t>(number));
}

/// Fields that are put together already.
struct Raw {
  const std::string& fields;
};
inline void put_field(std::string& frame, const Raw& raw) { frame += raw.fields; }

/// A whole frame.
template <class... Fields>
[[nodiscard]] std::string make_frame(helper_frame_type type, const Fields&... fields) {
  std::string frame(sizeof(std::uint32_t), '\0');
  frame.push_back(static_cast<char>(type));
  (put_field(frame, fields), ...);
  const auto size = static_cast<std::uint32_t>(frame.size() - frame_head_bytes);
  std::memcpy(frame.data(), &size, sizeof size);
  return frame;
}

}  // namespace ddrun::pmi
