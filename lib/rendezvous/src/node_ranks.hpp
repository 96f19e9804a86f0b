#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "membership.hpp"

// A round: who takes part, with which node ranks, and where they meet.

namespace ddrun::rendezvous {

/// Host names as people count them: node2 before node10.
[[nodiscard]] bool host_before(std::string_view a, std::string_view b);

/// Who takes part if at most `max` can: those of the last round first, then the coordinator's own agent, those with a
/// node rank of their own, and the others as they came.
[[nodiscard]] std::vector<Member*> choose_members(std::vector<Member*> candidates, std::size_t max);

/// The members in order of their new node ranks (lib/rendezvous/PROTOCOL.md, section 5). Changes nothing.
[[nodiscard]] std::vector<Member*> order_members(const std::vector<Member*>& members);

/// What this machine tells of its own addresses: those that others can reach, or the loopback where there are no
/// others.
[[nodiscard]] std::vector<std::string> advertised_addresses(const std::vector<IpAddress>& own_addresses);

/// Where the others reach node rank 0, of a round in order of node rank: what it advertises, else where its connection
/// comes from; if that is the coordinator's own machine, the address under which the others reached the coordinator. A
/// link-local one only if the machine has said no other.
[[nodiscard]] std::string address_of_node_rank_0(const std::vector<const Member*>& round,
                                                 const std::vector<IpAddress>& own_addresses);

/// From where the members of a round may come to its store, without doubles: what they advertise, where their
/// connections come from, all addresses of the coordinator's own machine if a member is on it, and those that members
/// say they have; of these only the first few of each where there are very many members, so that the list can be sent.
[[nodiscard]] std::vector<std::string> allowed_addresses(const std::vector<const Member*>& round,
                                                         const std::vector<IpAddress>& own_addresses);

}  // namespace ddrun::rendezvous
