#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ddrun/base/address.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::rendezvous {

/// What this machine is, for "does that endpoint name me?".
struct MachineFacts {
  std::string host_name;             ///< as uname says it
  std::vector<IpAddress> addresses;  ///< of all interfaces, loopback among them
  /// Addresses of a name, empty if it has none. May block for some seconds.
  std::function<std::vector<std::string>(const std::string& name)> resolve;
};

/// Of the machine that we are on.
[[nodiscard]] MachineFacts this_machine();

/// Where the coordinator of a job on several machines is, as far as one of its agents can tell before it has spoken to
/// anybody.
struct CoordinatorLocation {
  std::vector<Endpoint> candidates;  ///< never empty; each with a port
  bool is_local = false;             ///< this agent is to run it
  bool is_explicit = false;          ///< said by the user or by node rank: if the port is taken, that is an error
  bool loopback_only = false;        ///< only agents of this machine are meant
  std::vector<std::uint16_t> ports;  ///< if it is here: to be tried in this order
  std::string warning;               ///< what a user should know about the place; mostly empty
};

/// From the options alone but for names, which `machine` resolves. An agent runs the coordinator if it was told so
/// (--rdzv-conf is_host, a scheduler); in static mode if its node rank is 0; else if an endpoint is this machine:
/// localhost, an address of one of its interfaces, or a name all of whose addresses are that, or this machine's own
/// name where it has no address at all. A name is asked for at most once. Fails with `invalid_argument` if nothing says
/// where the coordinator is, or if the name has an address of this machine and one of another, as each of them would
/// run a coordinator.
[[nodiscard]] Result<CoordinatorLocation> find_coordinator(const RendezvousSpec& spec, const MachineFacts& machine);

/// Addresses of one machine, in the order in which they are likely to be reached from here: those with the longest
/// common beginning with one of our own first.
void nearest_first(std::vector<Endpoint>& endpoints, const std::vector<IpAddress>& own_addresses);

}  // namespace ddrun::rendezvous
