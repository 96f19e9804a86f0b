#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/store/tcp_client.hpp"

// For those who only have a name, such as a worker with MASTER_ADDR. The one place that asks the system's resolver:
// keep it out of ddrun itself, which has addresses at hand.
namespace ddrun::store {

/// The addresses of `host` in the resolver's order; an address or "localhost" comes back without any question.
/// The system's resolver blocks as long as it likes. Errors: `unavailable`, `invalid_argument` for an empty name.
[[nodiscard]] Result<std::vector<std::string>> resolve(std::string_view host);

/// TcpClient::connect to the first of the host's addresses that answers; all of this is retried until the deadline.
[[nodiscard]] Result<std::unique_ptr<TcpClient>> connect_by_name(std::string_view host, std::uint16_t port,
                                                                 Deadline deadline);

}  // namespace ddrun::store
