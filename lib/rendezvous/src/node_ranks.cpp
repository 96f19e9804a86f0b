#include "node_ranks.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <tuple>

#include "ddrun/rendezvous/assign_ranks.hpp"

namespace ddrun::rendezvous {

namespace {

bool digit(char c) { return c >= '0' && c <= '9'; }

std::string_view leading_digits(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && digit(text[length])) ++length;
  return text.substr(0, length);
}

/// Those that members say of themselves, together: with the others they fit into one frame.
constexpr std::size_t most_said = 50'000;

bool is_own(const IpAddress& address, const std::vector<IpAddress>& own_addresses) {
  return address.is_loopback() || std::find(own_addresses.begin(), own_addresses.end(), address) != own_addresses.end();
}

}  // namespace

bool host_before(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (digit(a.front()) && digit(b.front())) {
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

std::vector<Seat*> choose_members(std::vector<Seat*> candidates, std::size_t most) {
  const auto key = [](const Seat* seat) {
    return std::tuple(seat->kept_rank < 0, !seat->runs_coordinator, seat->wanted_rank < 0, seat->arrival);
  };
  if (candidates.size() > most) {
    std::sort(candidates.begin(), candidates.end(), [&](const Seat* a, const Seat* b) { return key(a) < key(b); });
    candidates.resize(most);
  }
  return candidates;
}

std::vector<Seat*> order_members(const std::vector<Seat*>& members) {
  const int count = static_cast<int>(members.size());
  std::vector<Seat*> ranks(members.size(), nullptr);
  const auto take = [&](Seat* seat, int rank) {
    if (rank < 0 || rank >= count || ranks[static_cast<std::size_t>(rank)] != nullptr) return false;
    ranks[static_cast<std::size_t>(rank)] = seat;
    return true;
  };
  std::vector<Seat*> rest;
  for (Seat* seat : members) {
    if (!take(seat, seat->wanted_rank)) rest.push_back(seat);
  }
  std::vector<Seat*> homeless;
  for (Seat* seat : rest) {
    if (!take(seat, seat->kept_rank)) homeless.push_back(seat);
  }
  // Those who had a rank that is gone, in its order; then newcomers: the coordinator's own, by name, by arrival.
  std::sort(homeless.begin(), homeless.end(), [](const Seat* a, const Seat* b) {
    if ((a->kept_rank < 0) != (b->kept_rank < 0)) return b->kept_rank < 0;
    if (a->kept_rank != b->kept_rank) return a->kept_rank < b->kept_rank;
    if (a->runs_coordinator != b->runs_coordinator) return a->runs_coordinator;
    if (host_before(a->host, b->host)) return true;
    if (host_before(b->host, a->host)) return false;
    return a->arrival < b->arrival;
  });
  std::size_t hole = 0;
  for (Seat* seat : homeless) {
    while (ranks[hole] != nullptr) ++hole;
    ranks[hole] = seat;
  }
  return ranks;
}

std::vector<RankAssignment> assign_ranks(const std::vector<Member>& members) {
  std::vector<RankAssignment> assignments(members.size());
  int world_size = 0;
  std::map<std::string, int> role_sizes;
  for (std::size_t node = 0; node < members.size(); ++node) {
    RankAssignment& mine = assignments[node];
    mine.node_rank = static_cast<int>(node);
    mine.node_count = static_cast<int>(members.size());
    mine.local_world_size = members[node].local_world_size;
    mine.base_rank = world_size;
    world_size += members[node].local_world_size;
    int& role_size = role_sizes[members[node].role];
    mine.role_base_rank = role_size;
    role_size += members[node].local_world_size;
  }
  for (std::size_t node = 0; node < members.size(); ++node) {
    assignments[node].world_size = world_size;
    assignments[node].role_world_size = role_sizes[members[node].role];
  }
  return assignments;
}

std::string address_of_node_rank_0(const std::vector<const Seat*>& round, const std::vector<IpAddress>& own_addresses) {
  const Seat& first = *round.front();
  if (!first.advertised.empty()) return first.advertised;
  if (!is_own(first.peer_address, own_addresses)) return first.peer_address.text();
  // Under this address one of the others was able to reach this machine.
  for (const Seat* other : round) {
    if (!is_own(other->peer_address, own_addresses)) return other->local_address.text();
  }
  return first.peer_address.text();
}

std::vector<std::string> addresses_of(const std::vector<const Seat*>& round,
                                      const std::vector<IpAddress>& own_addresses) {
  std::vector<IpAddress> addresses;
  bool own = false;
  for (const Seat* seat : round) {
    addresses.push_back(seat->peer_address);
    // It may be a name, which says nothing of where a connection comes from.
    if (const auto advertised = IpAddress::parse(seat->advertised)) addresses.push_back(*advertised);
    own = own || is_own(seat->peer_address, own_addresses);
    const auto some = std::min(seat->own_addresses.size(), most_said / round.size());
    addresses.insert(addresses.end(), seat->own_addresses.begin(),
                     seat->own_addresses.begin() + static_cast<std::ptrdiff_t>(some));
  }
  if (own) {
    addresses.insert(addresses.end(), own_addresses.begin(), own_addresses.end());
    for (const Seat* seat : round) addresses.push_back(seat->local_address);
  }
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  std::vector<std::string> texts;
  for (const IpAddress& address : addresses) {
    if (!address.is_unspecified()) texts.push_back(address.text());
  }
  return texts;
}

std::vector<std::string> addresses_to_tell(const std::vector<IpAddress>& own_addresses) {
  const bool only_loopback =
      std::all_of(own_addresses.begin(), own_addresses.end(), [](const IpAddress& one) { return one.is_loopback(); });
  std::vector<std::string> texts;
  for (const IpAddress& address : own_addresses) {
    if (texts.size() == most_own_addresses) break;
    if (only_loopback || !address.is_loopback()) texts.push_back(address.text());
  }
  return texts;
}

}  // namespace ddrun::rendezvous
