#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "seat.hpp"

namespace ddrun::rendezvous {

/// What an agent may say of its own machine's addresses (PROTOCOL.md, section 3); more are not looked at.
inline constexpr std::size_t most_own_addresses = 64;

/// What this machine tells of its own addresses: those that others can reach, or the loopback where there are no
/// others.
[[nodiscard]] std::vector<std::string> addresses_to_tell(const std::vector<IpAddress>& own_addresses);

/// Where the others reach node rank 0, of a round in order of node rank: what it advertises, else where its connection
/// comes from; if that is the coordinator's own machine, the address under which the others reached the coordinator.
[[nodiscard]] std::string address_of_node_rank_0(const std::vector<const Seat*>& round,
                                                 const std::vector<IpAddress>& own_addresses);

/// From where the members of a round may come to its store, without doubles: what they advertise, where their
/// connections come from, all addresses of the coordinator's own machine if a member is on it, and those that members
/// say they have; of these only the first few of each where there are very many members, so that the list can be sent.
[[nodiscard]] std::vector<std::string> addresses_of(const std::vector<const Seat*>& round,
                                                    const std::vector<IpAddress>& own_addresses);

}  // namespace ddrun::rendezvous
