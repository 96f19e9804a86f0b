#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <optional>
#include <string>

#include "codec.hpp"
#include "ddrun/test/store_wire.hpp"
#include "frames.hpp"
#include "handshake.hpp"

namespace ddrun::test {

inline const std::string test_secret = "a secret for these tests";

/// A connection driven step by step, with a record of what it has sent.
class RawAgent {
 public:
  explicit RawAgent(std::uint16_t port, const char* from = "127.0.0.1") : fd_(connected(port, from)) {}
  RawAgent(RawAgent&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        keys_(std::move(other.keys_)),
        in_(std::move(other.in_)),
        sent_(std::move(other.sent_)) {}
  RawAgent& operator=(RawAgent&&) = delete;
  ~RawAgent() { close(); }

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] const std::string& sent() const { return sent_; }

  bool send(std::string_view bytes) {
    sent_.append(bytes);
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  /// The whole handshake. Without a secret: method 0.
  rendezvous::HandshakeState handshake(const std::string& secret = test_secret) {
    const rendezvous::HmacKey key(secret);
    rendezvous::AgentHandshake handshake(secret.empty() ? nullptr : &key, rendezvous::random_nonce());
    send(handshake.begin());
    while (handshake.state() == rendezvous::HandshakeState::in_progress) {
      std::string bytes = receive_some();
      if (bytes.empty()) return rendezvous::HandshakeState::in_progress;  // closed
      std::string_view left = bytes;
      std::string out;
      handshake.feed(left, out);
      in_.assign(left);
      send(out);
    }
    if (handshake.state() == rendezvous::HandshakeState::done) keys_.emplace(handshake.keys());
    return handshake.state();
  }

  /// The bytes of a message, as the next frame of this connection.
  std::string sealed(const rendezvous::FromAgent& message) {
    std::string payload;
    const auto type = rendezvous::encode(message, payload);
    return sealed(type, payload);
  }
  std::string sealed(std::uint8_t type, std::string_view payload) {
    std::string bytes;
    REQUIRE(keys_);
    REQUIRE(keys_->sealer.seal(type, payload, bytes));
    return bytes;
  }
  bool send_message(const rendezvous::FromAgent& message) { return send(sealed(message)); }
  bool join(const std::string& host, const std::string& job = "job") {
    rendezvous::Join join;
    join.host = host;
    join.job_id = job;
    join.agent_id = host;
    return send_message(join);
  }

  /// The next message; empty if the peer closes.
  std::optional<rendezvous::FromCoordinator> receive() {
    for (;;) {
      rendezvous::FrameOpener::Frame frame;
      const auto status = keys_->opener.next(in_, frame);
      if (status == rendezvous::FrameOpener::Status::whole) {
        auto message = rendezvous::decode_from_coordinator(frame.type, frame.payload);
        if (!message) FAIL(message.error().message);
        in_.erase(0, frame.size);
        return *message;
      }
      if (status != rendezvous::FrameOpener::Status::incomplete) FAIL("a frame that cannot be opened");
      const auto more = receive_some();
      if (more.empty()) return std::nullopt;
      in_ += more;
    }
  }
  /// The next message of that type, skipping others; pings are answered.
  template <class Message>
  std::optional<Message> wait_for() {
    while (auto message = receive()) {
      if (auto* wanted = std::get_if<Message>(&*message)) return std::move(*wanted);
      if (const auto* ping = std::get_if<rendezvous::Ping>(&*message)) send_message(rendezvous::Pong{ping->number});
    }
    return std::nullopt;
  }

  /// Received bytes; empty after the peer has closed.
  std::string receive_some() {
    pollfd entry{fd_, POLLIN, 0};
    if (::poll(&entry, 1, 20'000) != 1) FAIL("nothing came for twenty seconds");
    char buffer[65536];
    const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
    return {buffer, static_cast<std::size_t>(got > 0 ? got : 0)};
  }
  /// Everything until the peer closes.
  std::string receive_all() {
    std::string all;
    for (std::string some; !(some = receive_some()).empty();) all += some;
    return all;
  }

 private:
  static int connected(std::uint16_t port, const char* from) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in own{}, to{};
    own.sin_family = to.sin_family = AF_INET;
    REQUIRE(::inet_pton(AF_INET, from, &own.sin_addr) == 1);
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&own), sizeof own) == 0);
    REQUIRE(::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
    return fd;
  }

  int fd_;
  std::optional<rendezvous::SessionKeys> keys_;
  std::string in_;
  std::string sent_;
};

}  // namespace ddrun::test
