#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddrun/rendezvous/messages.hpp"
#include "frames.hpp"
#include "handshake.hpp"

namespace ddrun::rendezvous {

/// One end of a session as bytes, the same at both ends (lib/rendezvous/PROTOCOL.md, sections 2 and 6). It outlives its
/// connections: what the peer has not confirmed is kept, and sent again on the next one. Pure: no socket, no clock.
class Session {
 public:
  /// A connection past its handshake. Until open() it carries messages about the connection only, such as JOIN.
  void connect(SessionKeys keys);
  /// Takes over the connection of `other`, with the input behind its last frame.
  void take_connection(Session& other);
  /// Both sides are in the session: sends what is kept, and from now on every message at once.
  void open();
  /// Drops the connection with its input and output.
  void disconnect();
  /// What was received does not belong to the session: it came from a coordinator that refused this agent.
  void reset_received() { received_ = 0; }

  void receive(std::string_view bytes) { in_.append(bytes); }
  /// The next frame, valid until the next call; `incomplete` without a connection. After any other status than `whole`
  /// and `incomplete` the connection is unusable.
  [[nodiscard]] FrameOpener::Status next(FrameOpener::Frame& frame, std::size_t max_size = max_payload);
  /// Received after the last frame.
  [[nodiscard]] bool has_partial_input() const { return in_begin_ < in_.size(); }
  /// Sequenced messages so far, for the peer to confirm.
  [[nodiscard]] std::uint64_t received() const { return received_; }

  /// Sequenced messages are kept until confirmed; others are dropped without a connection. At most max_payload bytes.
  void send(std::uint8_t type, std::string_view payload);
  /// The peer has received this many sequenced messages in total. False for an impossible number: more than were sent,
  /// or fewer than confirmed before.
  [[nodiscard]] bool confirm(std::uint64_t received);
  /// Sequenced messages so far.
  [[nodiscard]] std::uint64_t sent_messages() const { return confirmed_ + unconfirmed_.size(); }
  /// Of these, by confirm().
  [[nodiscard]] std::uint64_t confirmed() const { return confirmed_; }
  /// Output for the connection; after writing `size` bytes of it, call sent().
  [[nodiscard]] std::string_view unsent() const { return std::string_view(out_).substr(out_begin_); }
  void sent(std::size_t size);
  /// Unsent, and in unconfirmed payloads.
  [[nodiscard]] std::size_t bytes_kept() const { return out_.size() - out_begin_ + unconfirmed_bytes_; }

 private:
  std::optional<SessionKeys> keys_;  ///< of the connection
  bool is_open_ = false;
  std::string in_;  ///< received, from in_begin_ on
  std::size_t in_begin_ = 0;
  std::string out_;  ///< unsent, from out_begin_ on
  std::size_t out_begin_ = 0;
  std::uint64_t received_ = 0;
  std::vector<std::pair<std::uint8_t, std::string>> unconfirmed_;  ///< type and payload, oldest first
  std::size_t unconfirmed_bytes_ = 0;
  std::uint64_t confirmed_ = 0;
};

/// An agent's answers about its ranks, in parts of which one is on its way at a time: what answers heartbeats never
/// waits behind a long message (PROTOCOL.md, section 6).
class PacedAnswers {
 public:
  /// In place of what is left of an earlier one, whose question is over.
  void add(const Stacks& answer);
  /// The next part, which is sent at once, if the peer has the one before.
  [[nodiscard]] std::optional<Stacks> next(const Session& session);

 private:
  std::deque<Stacks> parts_;
  std::uint64_t last_ = 0;  ///< Session::sent_messages() with the last part
};

}  // namespace ddrun::rendezvous
