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

}  // namespace ddrun::rendezvous
