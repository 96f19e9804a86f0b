#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "membership.hpp"

// Membership of a round, node ranks and addresses.

namespace ddrun::rendezvous {

/// Natural order of host names: node2 before node10.
[[nodiscard]] bool host_before(std::string_view a, std::string_view b);

/// Chooses at most `max` members: those of the last round first, then the coordinator's own agent, those with an
/// explicit node rank, and the rest in join order.
[[nodiscard]] std::vector<Member*> choose_members(std::vector<Member*> candidates, std::size_t max);

/// The members in order of their new node ranks (lib/rendezvous/PROTOCOL.md, section 5). Pure.
[[nodiscard]] std::vector<Member*> order_members(const std::vector<Member*>& members);

/// This machine's addresses reachable by others; loopback only if there are no others.
[[nodiscard]] std::vector<std::string> advertised_addresses(const std::vector<IpAddress>& own_addresses);

/// MASTER_ADDR of a round in order of node rank: the advertised address of node rank 0, else its connection's; on the
/// coordinator's own machine, the address that the others connected to. Link-local only if no other is known.
[[nodiscard]] std::string address_of_node_rank_0(const std::vector<const Member*>& round,
                                                 const std::vector<IpAddress>& own_addresses);

/// Addresses allowed to use the round's store, without duplicates: advertised ones, those of connections, all of the
/// coordinator's machine if a member is on it, and those reported by members; of the last, fewer per member in very
/// large jobs, so that the list fits a message.
[[nodiscard]] std::vector<std::string> allowed_addresses(const std::vector<const Member*>& round,
                                                         const std::vector<IpAddress>& own_addresses);

}  // namespace ddrun::rendezvous
