#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// Where the workers of a job on one machine find their store.
struct LocalEndpoint {
  std::string advertised;              ///< MASTER_ADDR
  std::vector<std::string> listen_on;  ///< addresses, never a wildcard
  std::uint16_t port = 0;              ///< 0: any free one
  std::string run_id;                  ///< TORCHELASTIC_RUN_ID
};

/// Decides from the options alone; pure but for the random run id. A host name other than localhost is not resolved: it
/// can only mean this machine, and 127.0.0.1 is advertised. Errors: `invalid_argument` for an invalid endpoint.
[[nodiscard]] Result<LocalEndpoint> choose_local_endpoint(const RendezvousSpec& spec);
/// `wanted`; but if it is an address that is not among `listened` ("127.0.0.1:29500"), the first of these: a machine
/// may lack an address family on loopback.
[[nodiscard]] std::string reachable_address(const std::string& wanted, const std::vector<std::string>& listened);

}  // namespace ddrun::rendezvous
