#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddrun::rendezvous {

/// Sent messages without acknowledgement, to be sent again after a broken connection is resumed
/// (lib/rendezvous/PROTOCOL.md, section 6). Both sides count the sequenced messages of a session.
class Outbox {
 public:
  void add(std::uint8_t type, std::string_view payload) {
    bytes_ += payload.size();
    unconfirmed_.emplace_back(type, payload);
  }

  /// The peer has received this many in total. False for an impossible number: more than were sent, or fewer than
  /// confirmed before.
  [[nodiscard]] bool confirm(std::uint64_t received) {
    if (received < confirmed_ || received - confirmed_ > unconfirmed_.size()) return false;
    const auto end = unconfirmed_.begin() + static_cast<std::ptrdiff_t>(received - confirmed_);
    for (auto message = unconfirmed_.begin(); message != end; ++message) bytes_ -= message->second.size();
    unconfirmed_.erase(unconfirmed_.begin(), end);
    confirmed_ = received;
    return true;
  }

  /// Type and payload, oldest first.
  [[nodiscard]] const std::vector<std::pair<std::uint8_t, std::string>>& unconfirmed() const { return unconfirmed_; }
  /// Of their payloads.
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::vector<std::pair<std::uint8_t, std::string>> unconfirmed_;
  std::uint64_t confirmed_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace ddrun::rendezvous
