#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddrun {

/// Where something is, as people write it.
struct HostPort {
  std::string host;                 ///< name or address, without brackets
  std::optional<std::string> port;  ///< what stands behind the colon, whatever it is
};

/// "node0", "node0:29400", "[fd00::1]:29400", "[fd00::1]", and "fd00::1", since two colons without brackets are an IPv6
/// address alone. Nothing for a bracket that is not closed, or with something else than a port behind it.
[[nodiscard]] std::optional<HostPort> split_host_port(std::string_view text);

/// "node0:29400", "[fd00::1]:29400"; port 0 is left out.
[[nodiscard]] std::string host_port_text(std::string_view host, int port);

}  // namespace ddrun
