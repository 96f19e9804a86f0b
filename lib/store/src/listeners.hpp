#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "endpoint.hpp"

namespace ddrun::store {

/// A socket that listens, non-blocking and close-on-exec; accepted ones inherit TCP_NODELAY from it.
struct Listener {
  UniqueFd fd;
  Endpoint at;

  /// Drops every connection nobody has accepted yet, finished or half made, and goes on listening on the same port.
  Result<void> restart();
};

/// All addresses on one port; 0 chooses one that is free on each. What TcpServer::start says about errors.
[[nodiscard]] Result<std::vector<Listener>> open_listeners(const std::vector<std::string>& addresses,
                                                           std::uint16_t port);

}  // namespace ddrun::store
