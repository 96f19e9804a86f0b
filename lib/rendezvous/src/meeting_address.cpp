#include "meeting_address.hpp"

#include <algorithm>

namespace ddrun::rendezvous {

namespace {

/// Those that members say of themselves, together: with the others they fit into one frame.
constexpr std::size_t most_said = 50'000;

bool is_own(const IpAddress& address, const std::vector<IpAddress>& own_addresses) {
  return address.is_loopback() || std::find(own_addresses.begin(), own_addresses.end(), address) != own_addresses.end();
}

}  // namespace

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
