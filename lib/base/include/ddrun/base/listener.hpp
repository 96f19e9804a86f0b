#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

/// Empties the buffer of a connection, of which there are thousands: one that grew beyond this gives its memory back.
inline void empty_buffer(std::string& buffer) {
  constexpr std::size_t kept_capacity = 512;
  if (buffer.capacity() > kept_capacity) {
    std::string().swap(buffer);
  } else {
    buffer.clear();
  }
}

/// A socket that listens, non-blocking and close-on-exec; accepted ones inherit TCP_NODELAY from it.
struct Listener {
  UniqueFd fd;
  SocketAddress at;

  /// Drops every connection that is not accepted yet, finished or half made, and goes on listening on the same port,
  /// which no other user can take meanwhile.
  Result<void> restart();
};

/// Where they listen, as text: "127.0.0.1:29500", "[::1]:29500".
[[nodiscard]] std::vector<std::string> listener_addresses(const std::vector<Listener>& listeners);

/// All addresses on one port; 0 chooses one that is free on each. A family that this machine lacks is left out as long
/// as one address remains. Does not block. Fails with `unavailable` for a port in use (the cause is then
/// `address_in_use`) and when descriptors run out, with `invalid_argument` for an address that is none.
[[nodiscard]] Result<std::vector<Listener>> open_listeners(const std::vector<std::string>& addresses,
                                                           std::uint16_t port);

/// Takes connections off listeners, also when this process or machine has no descriptor left: a connection that stayed
/// in the queue would wake an event loop without end, so one descriptor is kept in reserve, with which it is taken and
/// cut off at once. One thread at a time.
class Acceptor {
 public:
  Acceptor();

  enum class Outcome {
    accepted,
    rejected,   ///< cut off for want of a descriptor
    failed,     ///< that one's trouble; the next may be well
    none,       ///< no caller waits, or the listener is shut
    exhausted,  ///< and nothing to be done about it: better not to look for a while
  };
  /// The next connection, non-blocking and close-on-exec, and where it comes from. Does not block.
  [[nodiscard]] Outcome next(const Listener& listener, UniqueFd& connection, sockaddr_storage& peer);

 private:
  [[nodiscard]] Outcome reject_one(int listener);

  UniqueFd reserve_;
};

}  // namespace ddrun
