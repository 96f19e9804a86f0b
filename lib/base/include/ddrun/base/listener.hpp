#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

/// Clears a connection's buffer and frees its memory if it has grown: a server has thousands of them.
inline void empty_buffer(std::string& buffer) {
  constexpr std::size_t kept_capacity = 512;
  if (buffer.capacity() > kept_capacity) {
    std::string().swap(buffer);
  } else {
    buffer.clear();
  }
}

/// A listening socket, non-blocking and close-on-exec; accepted connections inherit TCP_NODELAY.
struct Listener {
  UniqueFd fd;
  SocketAddress at;

  /// Drops all connections that are not accepted yet, including unfinished handshakes, and keeps listening on the same
  /// port, which no other user can bind meanwhile.
  Result<void> restart();
};

/// Their addresses as text: "127.0.0.1:29500", "[::1]:29500".
[[nodiscard]] std::vector<std::string> listener_addresses(const std::vector<Listener>& listeners);

/// Listens on all addresses with one port; 0 chooses a port that is free on each. A family without kernel support is
/// skipped as long as one address remains. Does not block. Fails with `unavailable` for a port in use (`cause` is then
/// `address_in_use`) or without descriptors, with `invalid_argument` for an invalid address.
[[nodiscard]] Result<std::vector<Listener>> open_listeners(const std::vector<std::string>& addresses,
                                                           std::uint16_t port);

/// Accepts connections, also at the descriptor limit: a connection left in the queue would wake a level-triggered loop
/// forever, so a reserved descriptor is used to accept and close it. Not thread-safe.
class Acceptor {
 public:
  Acceptor();

  enum class Outcome {
    accepted,
    rejected,   ///< closed at once: descriptor limit reached
    failed,     ///< this connection failed; try the next one
    none,       ///< no connection is pending, or the listener is closed
    exhausted,  ///< out of descriptors or memory: pause listening for a while
  };
  /// Accepts the next connection (non-blocking, close-on-exec) and its peer address. Does not block.
  [[nodiscard]] Outcome next(const Listener& listener, UniqueFd& connection, sockaddr_storage& peer);

 private:
  [[nodiscard]] Outcome reject_one(int listener);

  UniqueFd reserve_;
};

}  // namespace ddrun
