#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/rendezvous/hmac.hpp"
#include "frames.hpp"

// The greeting: lib/rendezvous/PROTOCOL.md, section 1. No sockets, no clock, no source of randomness: bytes in, bytes
// out.
namespace ddrun::rendezvous {

inline constexpr std::uint16_t protocol_version = 2;
inline constexpr std::size_t hello_size = 48;
using Nonce = std::array<std::uint8_t, 32>;

/// 32 bytes from the system's source. It has some on every machine that ddrun can run on; otherwise the process ends.
[[nodiscard]] Nonce random_nonce();

enum class HandshakeState {
  in_progress,
  done,
  // What an agent can meet.
  foreign_protocol,  ///< the other side does not speak this protocol
  other_version,     ///< see peer_version
  needs_secret,      ///< the coordinator wants a proof, this agent has no secret
  needs_no_secret,   ///< the coordinator was started without a secret, this agent was not
  busy,              ///< too many wait to be authenticated: try again
  rejected,          ///< the coordinator says that this agent's secret is another one
  wrong_secret,      ///< the other side does not know it
};

/// By what an agent proves that it belongs to the job.
enum class Method : std::uint16_t {
  none = 0,
  secret = 1,  ///< HMAC-SHA256 with the job's
};

/// Keys of the frames of a connection; both empty with method 0.
struct SessionKeys {
  FrameSealer sealer;
  FrameOpener opener;
};

/// What both sides have: a message that is not whole yet, and what has been agreed upon.
class Handshake {
 public:
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  [[nodiscard]] HandshakeState state() const { return state_; }
  /// Of the other side, once it has said so.
  [[nodiscard]] std::uint16_t peer_version() const { return peer_version_; }

 protected:
  Handshake(Method method, const Nonce& nonce) : method_(method), nonce_(nonce) {}
  ~Handshake();

  /// Takes from `bytes` what is missing of a message of `size` bytes; its bytes once it is whole.
  [[nodiscard]] std::string_view collect(std::string_view& bytes, std::size_t size);
  [[nodiscard]] bool is_foreign(std::string_view& bytes) const;
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
  /// `secret` outlives it; null: without one.
  AgentHandshake(const HmacKey* secret, const Nonce& nonce)
      : Handshake(secret != nullptr ? Method::secret : Method::none, nonce), secret_(secret) {}

  /// What to send first.
  [[nodiscard]] std::string begin() const;
  /// Takes bytes that came, from the front of `bytes`, and appends to `out` what to send. To be called until no byte is
  /// left or `state` is not going_on; what is left after `done` is frames.
  HandshakeState feed(std::string_view& bytes, std::string& out);
  /// Once done.
  [[nodiscard]] SessionKeys keys() const;

 private:
  const HmacKey* secret_;
};

/// The coordinator's side; small, since strangers can have many of them.
class CoordinatorHandshake : public Handshake {
 public:
  /// As AgentHandshake's.
  CoordinatorHandshake(const HmacKey* secret, const Nonce& nonce)
      : Handshake(secret != nullptr ? Method::secret : Method::none, nonce), secret_(secret) {}

  /// As the agent's. With any state but going_on and done: what is in `out` is still to be sent, then close.
  HandshakeState feed(std::string_view& bytes, std::string& out);
  [[nodiscard]] SessionKeys keys() const;
  /// What is to be sent to a peer for which there is no room; then close.
  [[nodiscard]] static std::string busy_reply();

 private:
  const HmacKey* secret_;
};

}  // namespace ddrun::rendezvous
