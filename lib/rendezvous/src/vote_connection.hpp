#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/base/duration.hpp"
#include "handshake.hpp"

namespace ddrun::rendezvous {

/// A connection between an agent and a voter, seen from either end: the greeting, then frames of one type each way.
/// One thread: that of the socket's executor. Nothing is called once it was dropped by its owner and close() called.
class VoteConnection : public std::enable_shared_from_this<VoteConnection> {
 public:
  /// One side's greeting.
  struct Greeter {
    std::string begin;  ///< is sent first
    std::function<Greeting(std::string_view& bytes, std::string& out)> feed;
    std::function<SessionKeys()> keys;
    std::function<std::uint16_t()> peer_version;
  };
  /// `secret` outlives it; null: none.
  [[nodiscard]] static Greeter agents(const HmacKey* secret);
  [[nodiscard]] static Greeter voters(const HmacKey* secret);

  struct Callbacks {
    std::function<void()> on_ready;  ///< the other side has proved itself
    std::function<void(std::uint8_t type, std::string_view payload)> on_frame;
    /// The greeting has failed; only then `greeting` says how.
    std::function<void(const std::string& why, bool in_order, std::optional<Greeting> greeting)> on_end;
  };

  VoteConnection(boost::asio::ip::tcp::socket socket, Greeter greeter, Callbacks callbacks);

  /// `greet_within`: otherwise it ends.
  void start(Clock::duration greet_within);
  void send(std::uint8_t type, std::string_view payload);
  /// It ends, abruptly, when nothing has come for so long; from now on, once it is ready.
  void end_if_silent_for(Clock::duration silence);
  /// When bytes came last.
  [[nodiscard]] Clock::time_point heard() const { return heard_; }
  [[nodiscard]] bool ready() const { return sealer_.has_value(); }
  [[nodiscard]] std::uint16_t peer_version() const { return greeter_.peer_version(); }

  /// Says nothing any more. `abruptly`: the other side does not take it for the end of this process.
  void close(bool abruptly);

 private:
  void read();
  void on_bytes(std::string_view bytes);
  void take_frames();
  void write();
  void end(const std::string& why, bool in_order, std::optional<Greeting> greeting = std::nullopt);

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  Greeter greeter_;
  Callbacks callbacks_;
  std::optional<FrameSealer> sealer_;
  std::optional<FrameOpener> opener_;
  std::array<char, 4096> buffer_{};
  std::string in_, out_, under_way_;
  bool closed_ = false;
  Clock::time_point heard_ = Clock::now();
};

}  // namespace ddrun::rendezvous
