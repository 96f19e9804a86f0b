#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/store/tcp_client.hpp"

// Connecting by host name, for example in a worker with MASTER_ADDR. The only place that calls the system's resolver;
// ddrun itself has addresses and does not use it.
namespace ddrun::store {

/// The addresses of `host` in the resolver's order; an address or "localhost" is returned without a look-up. Blocks,
/// and the system's resolver has no deadline. Errors: `unavailable`, `invalid_argument` for an empty name.
[[nodiscard]] Result<std::vector<std::string>> resolve(std::string_view host);

/// TcpClient::connect to the first of the host's addresses that accepts; look-up and connection are retried until the
/// deadline. Errors: those of both.
[[nodiscard]] Result<std::unique_ptr<TcpClient>> connect_by_name(std::string_view host, std::uint16_t port,
                                                                 Deadline deadline);

}  // namespace ddrun::store
