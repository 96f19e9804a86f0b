#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/rendezvous/hmac.hpp"
#include "frames.hpp"

// The handshake: lib/rendezvous/PROTOCOL.md, section 1. Pure: no sockets, clock or randomness.
namespace ddrun::rendezvous {

inline constexpr std::uint16_t protocol_version = 3;
inline constexpr std::size_t hello_size = 48;
using Nonce = std::array<std::uint8_t, 32>;

/// 32 bytes from the kernel; aborts the process if there are none.
[[nodiscard]] Nonce random_nonce();

enum class HandshakeState {
  in_progress,
  done,
  // Results for an agent.
  foreign_protocol,  ///< the peer does not speak this protocol
  other_version,     ///< see peer_version
  needs_secret,      ///< the coordinator requires a secret, this agent has none
  needs_no_secret,   ///< the coordinator runs without a secret, this agent has one
  busy,              ///< too many connections in handshake: try again
  rejected,          ///< the coordinator refused this agent's proof
  wrong_secret,      ///< the peer's proof is wrong
};

/// How an agent proves its membership.
enum class Method : std::uint16_t {
  none = 0,
  secret = 1,  ///< HMAC-SHA256 with the job's secret
};

/// Codecs for the frames of a connection; without keys for method 0.
struct SessionKeys {
  FrameSealer sealer;
  FrameOpener opener;
};

/// Common to both sides: the incomplete message and the negotiated state.
class Handshake {
 public:
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  [[nodiscard]] HandshakeState state() const { return state_; }
  /// Known once its hello has arrived.
  [[nodiscard]] std::uint16_t peer_version() const { return peer_version_; }

 protected:
  Handshake(Method method, const Nonce& nonce) : method_(method), nonce_(nonce) {}
  ~Handshake();

  /// Moves bytes of a `size`-byte message out of `bytes`; returns the message once it is complete.
  [[nodiscard]] std::string_view collect(std::string_view& bytes, std::size_t size);
  [[nodiscard]] bool is_foreign(std::string_view bytes) const;
  /// Collects the peer's hello and notes its version. Empty while it is incomplete, and in state foreign_protocol.
  [[nodiscard]] std::string_view collect_hello(std::string_view& bytes);
  [[nodiscard]] std::string hello(std::uint16_t number) const;
  void derive_key(const HmacKey& secret, std::string_view hello_of_agent, std::string_view answer_of_coordinator);
  [[nodiscard]] Digest proof(std::string_view of) const { return HmacKey(key_).sign({of}); }
  [[nodiscard]] SessionKeys keys(std::string_view sent, std::string_view received) const;

  HandshakeState state_ = HandshakeState::in_progress;
  Method method_;
  std::uint16_t peer_version_ = 0;
  std::uint8_t gathered_ = 0;
  bool hello_received_ = false;
  std::array<char, hello_size> buffer_{};
  Nonce nonce_;
  Digest key_{};
};

/// The agent's side.
class AgentHandshake : public Handshake {
 public:
  /// `secret` must outlive this object; null: no authentication.
  AgentHandshake(const HmacKey* secret, const Nonce& nonce)
      : Handshake(secret != nullptr ? Method::secret : Method::none, nonce), secret_(secret) {}

  /// The first message to send.
  [[nodiscard]] std::string begin() const;
  /// Consumes received bytes from the front of `bytes` and appends the reply to `out`. Call until no byte is left or
  /// `state` is not in_progress; bytes left after `done` are frames.
  HandshakeState feed(std::string_view& bytes, std::string& out);
  /// After `done`.
  [[nodiscard]] SessionKeys keys() const;

 private:
  const HmacKey* secret_;
};

/// The coordinator's side; small, since unauthenticated peers can cause many.
class CoordinatorHandshake : public Handshake {
 public:
  /// As for AgentHandshake.
  CoordinatorHandshake(const HmacKey* secret, const Nonce& nonce)
      : Handshake(secret != nullptr ? Method::secret : Method::none, nonce), secret_(secret) {}

  /// As for the agent. With a state other than in_progress and done: send `out`, then close.
  HandshakeState feed(std::string_view& bytes, std::string& out);
  [[nodiscard]] SessionKeys keys() const;
  /// Sent to a peer above the connection limit, before closing.
  [[nodiscard]] static std::string busy_reply();

 private:
  const HmacKey* secret_;
};

}  // namespace ddrun::rendezvous
