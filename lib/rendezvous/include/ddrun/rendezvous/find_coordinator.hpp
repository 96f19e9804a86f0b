#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// Identity of a machine, to decide whether an endpoint names it.
struct LocalMachine {
  std::string host_name;             ///< from uname
  std::vector<IpAddress> addresses;  ///< of all interfaces, including loopback
  /// Addresses of a name, empty if it has none. May block for some seconds.
  std::function<std::vector<std::string>(const std::string& name)> resolve;
};

/// Of the machine this process runs on.
[[nodiscard]] LocalMachine this_machine();

/// Where the coordinator of a job on several machines is, known before any contact.
struct CoordinatorLocation {
  std::vector<Endpoint> candidates;  ///< never empty; each with a port
  bool is_local = false;             ///< this agent runs it
  bool is_explicit = false;          ///< given by the user or by node rank: a port in use is then an error
  bool loopback_only = false;        ///< reachable from this machine only
  std::vector<std::uint16_t> ports;  ///< to try in this order, if it is local
  std::string warning;               ///< for the user; usually empty
};

/// Decides from the options; only names are resolved, by `machine`, each at most once. An agent runs the coordinator if
/// --rdzv-conf is_host (or a scheduler) says so; in static mode if its node rank is 0; else if an endpoint is this
/// machine: localhost, an address of its interfaces, a name with only such addresses, or its own name without any
/// address. May block in `machine.resolve`. Errors: `invalid_argument` without an endpoint, or for a name with
/// addresses of this and another machine, as each would run a coordinator.
[[nodiscard]] Result<CoordinatorLocation> find_coordinator(const RendezvousSpec& spec, const LocalMachine& machine);

/// Sorts addresses of one machine by longest common prefix with an address of this machine.
void nearest_first(std::vector<Endpoint>& endpoints, const std::vector<IpAddress>& own_addresses);

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
