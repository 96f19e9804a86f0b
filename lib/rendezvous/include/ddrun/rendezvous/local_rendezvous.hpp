#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// Where the workers of a job on one machine find their store, as decided from the options alone.
struct LocalEndpoint {
  std::string advertised;              ///< MASTER_ADDR
  std::vector<std::string> listen_on;  ///< addresses, never a wildcard
  std::uint16_t port = 0;              ///< 0: any free one
  std::string run_id;                  ///< TORCHELASTIC_RUN_ID
};

/// Pure but for the random run id. A host name other than localhost is not resolved: on one machine it can only
/// mean this one, and 127.0.0.1 is advertised. Fails with `invalid_argument` for an endpoint that cannot be meant.
[[nodiscard]] Result<LocalEndpoint> choose_local_endpoint(const RendezvousSpec& spec);
/// `wanted`, or the first of `listened` ("127.0.0.1:29500") if it is an address that is not among them: a loopback may
/// lack a family.
[[nodiscard]] std::string reachable_address(const std::string& wanted, const std::vector<std::string>& listened);

}  // namespace ddrun::rendezvous
