#include "node_ranks.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <tuple>

#include "ddrun/rendezvous/assign_ranks.hpp"

namespace ddrun::rendezvous {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view leading_digits(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  return text.substr(0, length);
}

/// In total, so that OPEN fits into one frame.
constexpr std::size_t max_reported_addresses = 50'000;

bool is_own_address(const IpAddress& address, const std::vector<IpAddress>& own_addresses) {
  return address.is_loopback() || std::find(own_addresses.begin(), own_addresses.end(), address) != own_addresses.end();
}

}  // namespace

bool host_before(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      std::string_view left = leading_digits(a);
      std::string_view right = leading_digits(b);
      a.remove_prefix(left.size());
      b.remove_prefix(right.size());
      left.remove_prefix(std::min(left.find_first_not_of('0'), left.size()));
      right.remove_prefix(std::min(right.find_first_not_of('0'), right.size()));
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

std::vector<Member*> choose_members(std::vector<Member*> candidates, std::size_t max) {
  const auto key = [](const Member* member) {
    return std::tuple(member->kept_rank < 0, !member->runs_coordinator, member->wanted_rank < 0, member->arrival);
  };
  if (candidates.size() > max) {
    std::sort(candidates.begin(), candidates.end(), [&](const Member* a, const Member* b) { return key(a) < key(b); });
    candidates.resize(max);
  }
  return candidates;
}

std::vector<Member*> order_members(const std::vector<Member*>& members) {
  const int count = static_cast<int>(members.size());
  std::vector<Member*> ranks(members.size(), nullptr);
  const auto place = [&](Member* member, int rank) {
    if (rank < 0 || rank >= count || ranks[static_cast<std::size_t>(rank)] != nullptr) return false;
    ranks[static_cast<std::size_t>(rank)] = member;
    return true;
  };
  std::vector<Member*> rest;
  for (Member* member : members) {
    if (!place(member, member->wanted_rank)) rest.push_back(member);
  }
  std::vector<Member*> unplaced;
  for (Member* member : rest) {
    if (!place(member, member->kept_rank)) unplaced.push_back(member);
  }
  // First those with a kept rank that is taken, in its order; then newcomers: the coordinator's own agent, by name, in
  // join order.
  std::sort(unplaced.begin(), unplaced.end(), [](const Member* a, const Member* b) {
    if ((a->kept_rank < 0) != (b->kept_rank < 0)) return b->kept_rank < 0;
    if (a->kept_rank != b->kept_rank) return a->kept_rank < b->kept_rank;
    if (a->runs_coordinator != b->runs_coordinator) return a->runs_coordinator;
    if (host_before(a->name, b->name)) return true;
    if (host_before(b->name, a->name)) return false;
    return a->arrival < b->arrival;
  });
  std::size_t free_rank = 0;
  for (Member* member : unplaced) {
    while (ranks[free_rank] != nullptr) ++free_rank;
    ranks[free_rank] = member;
  }
  return ranks;
}

std::vector<RankAssignment> assign_ranks(const std::vector<NodeShape>& nodes) {
  std::vector<RankAssignment> assignments(nodes.size());
  int world_size = 0;
  std::map<std::string, int> role_sizes;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    RankAssignment& ranks = assignments[node];
    ranks.node_rank = static_cast<int>(node);
    ranks.node_count = static_cast<int>(nodes.size());
    ranks.local_world_size = nodes[node].local_world_size;
    ranks.base_rank = world_size;
    world_size += nodes[node].local_world_size;
    int& role_size = role_sizes[nodes[node].role];
    ranks.role_base_rank = role_size;
    role_size += nodes[node].local_world_size;
  }
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    assignments[node].world_size = world_size;
    assignments[node].role_world_size = role_sizes[nodes[node].role];
  }
  return assignments;
}

namespace {

/// First usable address of node rank 0's machine that no other machine has: not a container engine's bridge.
std::optional<IpAddress> unshared_address(const std::vector<const Member*>& round, const std::vector<IpAddress>& own) {
  const auto found = std::find_if(own.begin(), own.end(), [&](const IpAddress& address) {
    return !address.is_link_local() && !address.is_loopback() && !address.is_unspecified() &&
           std::none_of(round.begin() + 1, round.end(), [&](const Member* other) {
             return std::find(other->own_addresses.begin(), other->own_addresses.end(), address) !=
                    other->own_addresses.end();
           });
  });
  return found == own.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::string address_of_node_rank_0(const std::vector<const Member*>& round,
                                   const std::vector<IpAddress>& own_addresses) {
  const Member& first = *round.front();
  if (!first.advertised.empty()) return first.advertised;
  const bool is_coordinator_machine = is_own_address(first.peer_address, own_addresses);
  std::optional<IpAddress> seen;
  for (const Member* other : round) {
    if (!is_coordinator_machine) break;
    if (is_own_address(other->peer_address, own_addresses)) continue;
    // At least one peer could reach this machine by this address.
    if (!seen || seen->is_link_local()) seen = other->local_address;
  }
  if (!seen) seen = first.peer_address;
  if (!seen->is_link_local()) return seen->text();
  // A link-local address needs an interface name, which differs between machines.
  return unshared_address(round, is_coordinator_machine ? own_addresses : first.own_addresses).value_or(*seen).text();
}

std::vector<std::string> allowed_addresses(const std::vector<const Member*>& round,
                                           const std::vector<IpAddress>& own_addresses) {
  std::vector<IpAddress> addresses;
  bool own = false;
  for (const Member* member : round) {
    addresses.push_back(member->peer_address);
    // A name does not tell where connections come from.
    if (const auto advertised = IpAddress::parse(member->advertised)) addresses.push_back(*advertised);
    own = own || is_own_address(member->peer_address, own_addresses);
    const auto some = std::min(member->own_addresses.size(), max_reported_addresses / round.size());
    addresses.insert(addresses.end(), member->own_addresses.begin(),
                     member->own_addresses.begin() + static_cast<std::ptrdiff_t>(some));
  }
  if (own) {
    addresses.insert(addresses.end(), own_addresses.begin(), own_addresses.end());
    for (const Member* member : round) addresses.push_back(member->local_address);
  }
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  std::vector<std::string> texts;
  for (const IpAddress& address : addresses) {
    if (!address.is_unspecified()) texts.push_back(address.text());
  }
  return texts;
}

std::vector<std::string> advertised_addresses(const std::vector<IpAddress>& own_addresses) {
  const bool only_loopback =
      std::all_of(own_addresses.begin(), own_addresses.end(), [](const IpAddress& one) { return one.is_loopback(); });
  std::vector<std::string> texts;
  for (const IpAddress& address : own_addresses) {
    if (texts.size() == max_own_addresses) break;
    if (only_loopback || !address.is_loopback()) texts.push_back(address.text());
  }
  return texts;
}

}  // namespace ddrun::rendezvous
