#pragma once

#include <string>

namespace ddrun::rendezvous {

struct HostPort {
  std::string host;
  std::string port;  ///< empty if there is none
};

/// "host", "host:port", "[v6]:port", "v6".
[[nodiscard]] HostPort split_endpoint(const std::string& endpoint);

}  // namespace ddrun::rendezvous
