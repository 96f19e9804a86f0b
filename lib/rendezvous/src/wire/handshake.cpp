#include "handshake.hpp"

#include <algorithm>
#include <cstdlib>

#include "ddrun/base/bytes.hpp"

namespace ddrun::rendezvous {

using bytes::load;
using bytes::put;

namespace {

constexpr std::string_view magic = "DDRUN-RV";
constexpr std::string_view key_label = "ddrun rendezvous 1";
constexpr std::string_view agent_proof = "ddrun agent";
constexpr std::string_view coordinator_proof = "ddrun coordinator";
/// In place of the coordinator's proof, so that agents can tell a wrong secret from a handshake timeout.
const std::string rejection_proof(sizeof(Digest), '\0');
constexpr std::string_view agent_frames = "agent to coordinator";
constexpr std::string_view coordinator_frames = "coordinator to agent";

enum Status : std::uint16_t {
  go_on = 0,
  another_version = 1,
  must_prove = 2,
  must_not_prove = 3,
  too_many = 4,
};

// Offsets within a hello.
constexpr std::size_t version_at = magic.size();
constexpr std::size_t number_at = version_at + 2;

std::string make_hello(std::uint16_t number, const Nonce& nonce) {
  std::string bytes(magic);
  put(bytes, protocol_version);
  put(bytes, number);
  put(bytes, std::uint32_t{0});
  bytes.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  return bytes;
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  if (!fill_random(std::as_writable_bytes(std::span(nonce)))) std::abort();
  return nonce;
}

Handshake::~Handshake() { wipe(key_.data(), key_.size()); }

std::string_view Handshake::collect(std::string_view& bytes, std::size_t size) {
  const auto taken = bytes.substr(0, size - gathered_);
  bytes.remove_prefix(taken.size());
  std::copy(taken.begin(), taken.end(), buffer_.begin() + gathered_);
  gathered_ = static_cast<std::uint8_t>(gathered_ + taken.size());
  if (gathered_ < size) return {};
  gathered_ = 0;
  return {buffer_.data(), size};
}

/// Detected at the first wrong byte: a peer of another protocol may wait for a reply before it has sent a whole hello.
bool Handshake::is_foreign(std::string_view bytes) const {
  const auto expected = magic.substr(std::min<std::size_t>(gathered_, magic.size()));
  const auto length = std::min(expected.size(), bytes.size());
  return bytes.substr(0, length) != expected.substr(0, length);
}

std::string_view Handshake::collect_hello(std::string_view& bytes) {
  if (is_foreign(bytes)) {
    state_ = HandshakeState::foreign_protocol;
    return {};
  }
  const auto theirs = collect(bytes, hello_size);
  if (theirs.empty()) return {};
  hello_received_ = true;
  peer_version_ = load<std::uint16_t>(theirs.data() + version_at);
  return theirs;
}

std::string Handshake::hello(std::uint16_t number) const { return make_hello(number, nonce_); }

void Handshake::derive_key(const HmacKey& secret, std::string_view hello_of_agent,
                           std::string_view answer_of_coordinator) {
  key_ = secret.sign({key_label, hello_of_agent, answer_of_coordinator});
}

SessionKeys Handshake::keys(std::string_view sent, std::string_view received) const {
  const auto key = [this](std::string_view label) -> std::optional<HmacKey> {
    if (method_ == Method::none) return std::nullopt;
    return HmacKey(HmacKey(key_).sign({label}));
  };
  return {FrameSealer(key(sent)), FrameOpener(key(received))};
}

std::string AgentHandshake::begin() const { return hello(static_cast<std::uint16_t>(method_)); }

HandshakeState AgentHandshake::feed(std::string_view& bytes, std::string& out) {
  if (state_ != HandshakeState::in_progress) return state_;
  if (!hello_received_) {
    const auto theirs = collect_hello(bytes);
    if (theirs.empty()) return state_;
    switch (load<std::uint16_t>(theirs.data() + number_at)) {
      case go_on: break;
      case another_version: return state_ = HandshakeState::other_version;
      case must_prove: return state_ = HandshakeState::needs_secret;
      case must_not_prove: return state_ = HandshakeState::needs_no_secret;
      case too_many: return state_ = HandshakeState::busy;
      default: return state_ = HandshakeState::foreign_protocol;
    }
    if (peer_version_ != protocol_version) return state_ = HandshakeState::other_version;
    if (method_ == Method::none) return state_ = HandshakeState::done;
    derive_key(*secret_, begin(), theirs);
    out.append(view(proof(agent_proof)));
  }
  const auto theirs = collect(bytes, sizeof(Digest));
  if (theirs.empty()) return state_;
  if (theirs == rejection_proof) return state_ = HandshakeState::rejected;
  const bool right = equal_in_constant_time(theirs, view(proof(coordinator_proof)));
  return state_ = right ? HandshakeState::done : HandshakeState::wrong_secret;
}

SessionKeys AgentHandshake::keys() const { return Handshake::keys(agent_frames, coordinator_frames); }

HandshakeState CoordinatorHandshake::feed(std::string_view& bytes, std::string& out) {
  if (state_ != HandshakeState::in_progress) return state_;
  if (!hello_received_) {
    const auto theirs = collect_hello(bytes);
    if (theirs.empty()) return state_;
    const auto method = static_cast<Method>(load<std::uint16_t>(theirs.data() + number_at));
    Status status = go_on;
    if (peer_version_ != protocol_version) {
      status = another_version;
      state_ = HandshakeState::other_version;
    } else if (method != method_) {
      status = method_ == Method::none ? must_not_prove : must_prove;
      state_ = method_ == Method::none ? HandshakeState::needs_no_secret : HandshakeState::needs_secret;
    } else if (method_ == Method::none) {
      state_ = HandshakeState::done;
    }
    const std::string ours = hello(status);
    out.append(ours);
    if (state_ != HandshakeState::in_progress) return state_;
    derive_key(*secret_, theirs, ours);
  }
  const auto theirs = collect(bytes, sizeof(Digest));
  if (theirs.empty()) return state_;
  if (!equal_in_constant_time(theirs, view(proof(agent_proof)))) {
    out.append(rejection_proof);
    return state_ = HandshakeState::wrong_secret;
  }
  out.append(view(proof(coordinator_proof)));
  return state_ = HandshakeState::done;
}

SessionKeys CoordinatorHandshake::keys() const { return Handshake::keys(coordinator_frames, agent_frames); }

std::string CoordinatorHandshake::busy_reply() { return make_hello(too_many, Nonce{}); }

}  // namespace ddrun::rendezvous
