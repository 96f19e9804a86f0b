#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddrun::rendezvous {

/// Messages of one direction that the other side has not said to have heard: they are sent once more when a broken
/// connection was made again (lib/rendezvous/PROTOCOL.md, section 6). Both sides count the messages of a session alike.
class Outbox {
 public:
  void add(std::uint8_t type, std::string_view payload) {
    bytes_ += payload.size();
    unconfirmed_.emplace_back(type, payload);
  }

  /// The other side has heard so many in all. False if that cannot be: it counts more than were sent, or fewer than it
  /// has said before.
  [[nodiscard]] bool confirm(std::uint64_t received) {
    if (received < confirmed_ || received - confirmed_ > unconfirmed_.size()) return false;
    const auto end = unconfirmed_.begin() + static_cast<std::ptrdiff_t>(received - confirmed_);
    for (auto message = unconfirmed_.begin(); message != end; ++message) bytes_ -= message->second.size();
    unconfirmed_.erase(unconfirmed_.begin(), end);
    confirmed_ = received;
    return true;
  }

  /// Type and payload, the oldest first.
  [[nodiscard]] const std::vector<std::pair<std::uint8_t, std::string>>& unconfirmed() const { return unconfirmed_; }
  /// Of their payloads.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::vector<std::pair<std::uint8_t, std::string>> unconfirmed_;
  std::uint64_t confirmed_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace ddrun::rendezvous
