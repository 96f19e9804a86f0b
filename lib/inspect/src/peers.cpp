#include "peers.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::inspect {

namespace {

constexpr std::ptrdiff_t max_noted_waits = 5;
constexpr std::size_t max_noted_clients = 5;

using KnownConnections = RankStacks::Connections;

bool is_loopback(std::string_view address) { return address.starts_with("127.") || address.starts_with("[::1]"); }

/// Ranks by the addresses of their sockets.
class Owners {
 public:
  using Ranks = std::vector<RankName>;  ///< several have inherited it, or listen at its port

  explicit Owners(const StackPage& page) {
    for (const RankStacks& rank : page.ranks) {
      for (const Connection& connection : rank.connections) {
        Ranks& ranks = owners_[key(rank.host, connection.own)];
        const RankName name{rank.role, connection.rank};
        if (ranks.empty() || ranks.back() != name) ranks.push_back(name);
        hosts_.emplace(ip_of(connection.own), rank.host);
      }
    }
  }
  /// Of the socket with this address, as a process on `host` sees it; null: none that is known.
  [[nodiscard]] const Ranks* find(const std::string& host, const std::string& address) const {
    if (const auto found = owners_.find(key(host, address)); found != owners_.end()) return &found->second;
    // What is not accepted yet is of no process.
    const auto at = is_loopback(address) ? hosts_.end() : hosts_.find(ip_of(address));
    if (at == hosts_.end() && !is_loopback(address)) return nullptr;
    const auto listening = owners_.find({at != hosts_.end() ? at->second : host, concat("*:", port_of(address))});
    return listening != owners_.end() ? &listening->second : nullptr;
  }

 private:
  static std::string_view ip_of(std::string_view address) { return address.substr(0, address.rfind(':')); }
  static std::pair<std::string, std::string> key(const std::string& host, const std::string& address) {
    return {is_loopback(address) || address.starts_with('*') ? host : "", address};
  }
  std::map<std::pair<std::string, std::string>, Ranks> owners_;
  std::map<std::string_view, std::string> hosts_;  ///< by their addresses
};

/// The first rank at the other end of one of its sockets, or the store; empty: none that is known.
std::string name_peer(const ThreadStack& thread, const std::string& host, const Owners& owners,
                      const std::set<int>& store_ports) {
  for (const std::string& peer : thread.peers) {
    const auto* ranks = owners.find(host, peer);
    if (ranks != nullptr) return name_workers(*ranks);
    if (store_ports.contains(port_of(peer))) return "the store";
  }
  return {};
}

}  // namespace

int port_of(std::string_view address) { return whole_number<int>(address.substr(address.rfind(':') + 1)).value_or(0); }

void name_peers(StackPage& page, const std::set<int>& store_ports, bool is_whole) {
  const Owners owners(page);
  const bool all_known = is_whole && std::ranges::all_of(page.ranks, [](const RankStacks& rank) {
                           return rank.connections_known == KnownConnections::all;
                         });
  for (RankStacks& rank : page.ranks) {
    for (ThreadStack& thread : rank.threads) {
      if (!thread.on_socket || thread.peers.empty()) continue;
      const std::string name = name_peer(thread, rank.host, owners, store_ports);
      const std::size_t at = thread.doing.find(thread.peers.front());
      if (!name.empty() && at != std::string::npos) thread.doing.replace(at, thread.peers.front().size(), name);
      if (name.empty() && all_known && !thread.peers.back().empty()) thread.on_socket = false;
    }
  }
}

void name_store_clients(StackPage& page) {
  const Owners owners(page);
  for (const StoreWait& wait : page.store_waits) {
    std::vector<RankName> ranks;
    std::vector<std::string> who;
    for (const std::string& client : wait.clients) {
      const auto* found = owners.find(page.store_host, client);
      if (found != nullptr) ranks.insert(ranks.end(), found->begin(), found->end());
      else who.push_back(client);
    }
    if (who.size() > max_noted_clients) {
      who[max_noted_clients] = concat(who.size() - max_noted_clients, " more");
      who.resize(max_noted_clients + 1);
    }
    if (!ranks.empty()) who.insert(who.begin(), name_workers(ranks));
    if (&wait - page.store_waits.data() < max_noted_waits) {
      page.notes.push_back(concat(join(who, ", "), wait.clients.size() > 1 ? " wait" : " waits", " in the store for ",
                                  wait.keys, ", ", format_duration(Milliseconds(wait.milliseconds))));
    }
    page.in_store.insert(page.in_store.end(), ranks.begin(), ranks.end());
  }
  if (page.store_waits.size() > max_noted_waits)
    page.notes.push_back(
        concat("others wait in the store for ", page.store_waits.size() - max_noted_waits, " more keys"));
}

void reduce_connections(StackPage& page, std::size_t max_bytes) {
  std::size_t bytes = 0;
  bool library_used = false;
  for (RankStacks& rank : page.ranks) {
    library_used = library_used || (!rank.threads.empty() && is_in_library(rank.threads.front()));
    for (const Connection& one : rank.connections) bytes += one.to_store ? 0 : one.own.size() + sizeof(int);
  }
  // Where a library is used, sockets do not tell who waits.
  if (!library_used && bytes <= max_bytes) return;
  for (RankStacks& rank : page.ranks) {
    std::erase_if(rank.connections, [](const Connection& one) { return !one.to_store; });
    rank.connections_known = std::min(rank.connections_known, KnownConnections::of_store);
  }
}

}  // namespace ddrun::inspect
