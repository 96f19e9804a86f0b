#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "key_space.hpp"
#include "request_parser.hpp"
#include "wire.hpp"

namespace ddrun::store {

/// State that is shared by all clients of a server; used on the server's thread only.
struct ServerState {
  KeySpace space;

  std::array<std::uint64_t, wire::opcode_count> requests{};  ///< whole ones, by wire::Opcode
  std::uint64_t refused = 0;                                 ///< connections closed because of an invalid request

  std::size_t memory_limit = 0;  ///< of keys, waits and buffers together, bytes; 0 for none
  std::size_t buffered = 0;      ///< incomplete requests and unsent replies of all connections, bytes

  /// Why the last client was refused, for the server's log; empty if the peer never spoke the protocol.
  std::string refusal_reason;

  [[nodiscard]] std::size_t memory() const { return space.memory() + buffered; }
  [[nodiscard]] bool has_room(std::size_t more) const { return memory_limit == 0 || memory() + more <= memory_limit; }
};

/// The server's side of one connection without the socket: bytes in, bytes out. Not thread-safe, never blocks.
///
/// `waiter` represents this client in the key space: on on_keys_exist() its owner sends wire::wait_stopped, on
/// on_key_changed() the bytes of append_change().
class Session {
 public:
  Session(ServerState& state, Waiter& waiter) : state_(&state), waiter_(&waiter) {}

  struct Progress {
    std::size_t consumed = 0;  ///< bytes of the input that were whole requests
    bool close = false;        ///< the client violated the protocol or a limit; send `replies`, then close
    bool paused = false;       ///< stopped at `enough` replies; there may be more whole requests in the rest
  };

  /// Executes the complete requests at the start of `input` and appends their replies, until these are `enough` bytes.
  /// With `close`, ServerState::refusal_reason has the reason, unless the peer has never made a valid request.
  [[nodiscard]] Progress handle(std::string_view input, std::string& replies, std::size_t enough);

  /// Bytes of input below which handle() can do nothing.
  [[nodiscard]] std::size_t needed() const { return stage_ == Stage::unknown ? 1 : parser_.needed(); }

 private:
  enum class Stage : std::uint8_t {
    unknown,   // too few bytes to tell the dialect
    greeting,  // modern, VALIDATE must come first
    open,
  };

  [[nodiscard]] bool begin(std::string_view input);
  [[nodiscard]] bool apply(const Request& request, std::size_t size, std::string& replies);
  [[nodiscard]] bool check(const Request& request, std::string& replies);
  [[nodiscard]] bool wait(const Request& request, std::string& replies);
  [[nodiscard]] bool arrive(const Request& request, std::string& replies);
  [[nodiscard]] bool multi_get(const Request& request, std::string& replies);
  [[nodiscard]] bool list_keys(std::string& replies);
  [[nodiscard]] bool has_room(const Request& request, std::size_t size);
  [[nodiscard]] bool has_room_for_waits(const Request& request);
  [[nodiscard]] bool refuse_for_room(std::string_view what);
  [[nodiscard]] bool refuse(std::string why);
  [[nodiscard]] bool refuse_parsed(const Request& request);

  ServerState* state_;
  Waiter* waiter_;
  RequestParser parser_;
  Stage stage_ = Stage::unknown;
  Dialect dialect_ = Dialect::modern;
  bool has_requested_ = false;  // has made a request besides the greeting
};

/// Appends the notification of a changed key, for a client of the old dialect that watches it.
void append_change(std::string& to, KeyChange change, std::string_view key, std::string_view before,
                   std::string_view now);
/// Bytes that append_change() appends.
[[nodiscard]] constexpr std::size_t change_size(std::string_view key, std::string_view before, std::string_view now) {
  return 1 + 3 * sizeof(std::uint64_t) + key.size() + before.size() + now.size();
}

}  // namespace ddrun::store
