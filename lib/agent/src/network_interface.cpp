#include "network_interface.hpp"

#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>

#include "ddrun/base/address.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::agent {

namespace {

/// With a line "10.0.0.7 name alias" Gloo finds an address of this machine that other machines can reach.
bool is_in_hosts_file(const std::string& name) {
  for (const std::string& line : split(read_small_file("/etc/hosts").value_or(""), '\n')) {
    std::string text = line.substr(0, line.find('#'));
    std::replace(text.begin(), text.end(), '\t', ' ');
    std::vector<std::string> fields = split(trim(text), ' ');
    const auto address = IpAddress::parse(fields.front());
    if (std::find(fields.begin() + 1, fields.end(), name) != fields.end() && address && !address->is_loopback() &&
        !interface_of(*address).empty()) {
      return true;
    }
  }
  return false;
}

/// From the routing table; connect(2) of a UDP socket sends no packet.
std::optional<IpAddress> source_address_to(const SocketAddress& peer) {
  const UniqueFd fd(::socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), peer.get(), peer.size) != 0) return std::nullopt;
  const auto local = local_socket_address(fd.get());
  return local ? IpAddress::of(local->storage) : std::nullopt;
}

}  // namespace

Result<void> check_interface(const std::string& name) {
  if (::if_nametoindex(name.c_str()) != 0) return {};
  std::vector<std::string> names;
  if (struct if_nameindex* const all = ::if_nameindex()) {
    for (const auto* one = all; one->if_name != nullptr; ++one) names.emplace_back(one->if_name);
    ::if_freenameindex(all);
  }
  return fail(Errc::invalid_argument,
              concat("--interface=", name, ": this machine has no such interface; it has ", join(names, ", ")));
}

std::vector<std::pair<std::string, std::string>> interface_variables(const LaunchSpec& spec,
                                                                     const std::string& master_addr,
                                                                     const std::string& host_name) {
  const std::string& named = spec.rendezvous.interface;
  if (!named.empty()) {
    return {{"GLOO_SOCKET_IFNAME", named}, {"NCCL_SOCKET_IFNAME", named}, {"UCX_NET_DEVICES", named}};
  }
  const auto peer = SocketAddress::parse(master_addr, 1);
  if (!spec.rendezvous.several_machines() || !peer || peer->is_wildcard_or_loopback() ||
      IpAddress::parse(master_addr)->is_loopback() || is_in_hosts_file(host_name)) {
    return {};
  }
  const auto local = source_address_to(*peer);
  const std::string found = local ? interface_of(*local) : "";
  if (found.empty()) return {};
  return {{"GLOO_SOCKET_IFNAME", found}};
}

}  // namespace ddrun::agent
