#pragma once

#include <string>
#include <vector>

#include "seat.hpp"

namespace ddrun::rendezvous {

/// Where the others reach node rank 0, of a round in order of node rank: what it advertises, else where its connection
/// comes from; if that is the coordinator's own machine, the address under which the others reached the coordinator.
[[nodiscard]] std::string address_of_node_rank_0(const std::vector<const Seat*>& round,
                                                 const std::vector<IpAddress>& own_addresses);

/// From where the members of a round may come to its store, without doubles: what they advertise, where their
/// connections come from, and all addresses of the coordinator's own machine if a member is on it.
[[nodiscard]] std::vector<std::string> addresses_of(const std::vector<const Seat*>& round,
                                                    const std::vector<IpAddress>& own_addresses);

}  // namespace ddrun::rendezvous
