#pragma once

#include <string_view>
#include <vector>

#include "seat.hpp"

namespace ddrun::rendezvous {

/// Host names as people count them: node2 before node10.
[[nodiscard]] bool host_before(std::string_view a, std::string_view b);

/// Who takes part if at most `most` can: those of the last round first, then the coordinator's own agent, those with a
/// node rank of their own, and the others as they came.
[[nodiscard]] std::vector<Seat*> choose_members(std::vector<Seat*> candidates, std::size_t most);

/// The members in order of their new node ranks (lib/rendezvous/PROTOCOL.md, section 5). Changes nothing.
[[nodiscard]] std::vector<Seat*> order_members(const std::vector<Seat*>& members);

}  // namespace ddrun::rendezvous
