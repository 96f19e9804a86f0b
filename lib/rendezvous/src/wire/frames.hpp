#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/rendezvous/hmac.hpp"

// Frames: lib/rendezvous/PROTOCOL.md, section 2. Pure functions of bytes, without sockets.
namespace ddrun::rendezvous {

/// Bytes of payload per frame.
inline constexpr std::size_t max_payload_before_join = 64 * 1024;
inline constexpr std::size_t max_payload = 4 * 1024 * 1024;
/// Length and type.
inline constexpr std::size_t frame_head = 5;
inline constexpr std::size_t frame_tag = 16;

/// Encodes the frames of one direction, in order.
class FrameSealer {
 public:
  /// Without a key, frames have no tag.
  explicit FrameSealer(std::optional<HmacKey> key) : key_(std::move(key)) {}

  /// Appends a frame. False, with nothing appended, for a payload above max_payload.
  bool seal(std::uint8_t type, std::string_view payload, std::string& out);

 private:
  std::optional<HmacKey> key_;
  std::uint64_t sequence_ = 0;
};

/// Decodes the frames of one direction, in order.
class FrameOpener {
 public:
  explicit FrameOpener(std::optional<HmacKey> key) : key_(std::move(key)) {}

  struct Frame {
    std::uint8_t type = 0;
    std::string_view payload;  ///< within the input
    std::size_t size = 0;      ///< of the whole frame
  };
  enum class Status { incomplete, whole, too_long, wrong_tag };

  /// Decodes the first frame of `input`. After a status other than `incomplete` and `whole` the connection is unusable.
  [[nodiscard]] Status next(std::string_view input, Frame& frame, std::size_t max_size = max_payload);

 private:
  [[nodiscard]] std::size_t tag_size() const { return key_ ? frame_tag : 0; }

  std::optional<HmacKey> key_;
  std::uint64_t sequence_ = 0;
};

}  // namespace ddrun::rendezvous
