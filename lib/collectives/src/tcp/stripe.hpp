#pragma once

#include <algorithm>
#include <cstddef>

namespace ddrun::collectives {

/// A message is cut into chunks that the streams of a link carry in turn. A multiple of every element's size.
inline constexpr std::size_t kStripeChunk = 128 << 10;

/// How many of a link's `streams` a message of `bytes` uses: few bytes are not worth a second one.
[[nodiscard]] constexpr int streams_for(std::size_t bytes, int streams) {
  const std::size_t chunks = std::max<std::size_t>(bytes / (2 * kStripeChunk), 1);
  return static_cast<int>(std::min(chunks, static_cast<std::size_t>(streams)));
}

/// The part of a message that one stream carries, and how far that is: chunks number `stream`, `stream + streams`, ….
class Stripe {
 public:
  Stripe(std::size_t bytes, int stream, int streams)
      : bytes_(bytes),
        chunk_(streams == 1 ? std::max<std::size_t>(bytes, 1) : kStripeChunk),
        skip_(chunk_ * static_cast<std::size_t>(streams - 1)),
        at_(chunk_ * static_cast<std::size_t>(stream)),
        left_(at_ < bytes ? std::min(chunk_, bytes - at_) : 0) {}

  [[nodiscard]] bool done() const { return left_ == 0; }
  /// Where in the message the next byte belongs.
  [[nodiscard]] std::size_t offset() const { return at_; }
  /// Bytes that follow each other from there.
  [[nodiscard]] std::size_t left() const { return left_; }
  /// At most left().
  void advance(std::size_t bytes) {
    at_ += bytes;
    left_ -= bytes;
    if (left_ > 0 || at_ >= bytes_) return;
    at_ += skip_;
    if (at_ < bytes_) left_ = std::min(chunk_, bytes_ - at_);
  }

 private:
  std::size_t bytes_;
  std::size_t chunk_;
  std::size_t skip_;
  std::size_t at_;
  std::size_t left_;
};

}  // namespace ddrun::collectives
