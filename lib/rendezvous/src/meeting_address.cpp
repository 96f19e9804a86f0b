#include "meeting_address.hpp"

#include <algorithm>

#include "addresses.hpp"

namespace ddrun::rendezvous {

namespace {

bool is_own(const std::string& address, const std::vector<std::string>& own_addresses) {
  return is_loopback(address) || std::find(own_addresses.begin(), own_addresses.end(), address) != own_addresses.end();
}

}  // namespace

std::string address_of_node_rank_0(const std::vector<const Seat*>& round,
                                   const std::vector<std::string>& own_addresses) {
  const Seat& first = *round.front();
  if (!first.advertised.empty()) return first.advertised;
  if (!is_own(first.peer_address, own_addresses)) return first.peer_address;
  // Under this address one of the others was able to reach this machine.
  for (const Seat* other : round) {
    if (!is_own(other->peer_address, own_addresses)) return other->local_address;
  }
  return first.peer_address;
}

std::vector<std::string> addresses_of(const std::vector<const Seat*>& round,
                                      const std::vector<std::string>& own_addresses) {
  std::vector<std::string> addresses;
  bool own = false;
  for (const Seat* seat : round) {
    addresses.push_back(seat->peer_address);
    if (!seat->advertised.empty()) addresses.push_back(seat->advertised);
    own = own || is_own(seat->peer_address, own_addresses);
  }
  if (own) {
    addresses.insert(addresses.end(), own_addresses.begin(), own_addresses.end());
    for (const Seat* seat : round) addresses.push_back(seat->local_address);
  }
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  if (!addresses.empty() && addresses.front().empty()) addresses.erase(addresses.begin());
  return addresses;
}

}  // namespace ddrun::rendezvous
