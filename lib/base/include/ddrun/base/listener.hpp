#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/base/socket_address.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun {

/// A socket that listens, non-blocking and close-on-exec; accepted ones inherit TCP_NODELAY from it.
struct Listener {
  UniqueFd fd;
  SocketAddress at;

  /// Drops every connection nobody has accepted yet, finished or half made, and goes on listening on the same port.
  Result<void> restart();
};

/// All addresses on one port; 0 chooses one that is free on each. A family that this machine lacks is left out as long
/// as one address remains. Does not block. Fails with `unavailable` for a port in use (the cause is then
/// `address_in_use`) and when descriptors run out, with `invalid_argument` for an address that is none.
[[nodiscard]] Result<std::vector<Listener>> open_listeners(const std::vector<std::string>& addresses,
                                                           std::uint16_t port);

}  // namespace ddrun
