#include "addresses.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>

#include "ddrun/base/text.hpp"

namespace ddrun::remote {

namespace {

bool is_loopback(std::string_view address) { return address.starts_with("127.") || address == "::1"; }

/// Empty for what others cannot use.
std::string address_text(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address->sa_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(address);  // NOLINT: how the socket interface is
    ::inet_ntop(AF_INET, &four->sin_addr, text.data(), text.size());
  } else if (address->sa_family == AF_INET6) {
    const auto* six = reinterpret_cast<const sockaddr_in6*>(address);  // NOLINT
    // A link-local one means something only together with an interface of the machine that uses it.
    if (!IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) ::inet_ntop(AF_INET6, &six->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

std::vector<std::string> own_addresses(std::string_view ssh_connection) {
  std::vector<std::string> found;
  const auto add = [&](const std::string& address) {
    if (!address.empty() && std::find(found.begin(), found.end(), address) == found.end()) found.push_back(address);
  };
  const auto words = split(ssh_connection, ' ');
  if (words.size() == 4) add(words[2].starts_with("::ffff:") ? words[2].substr(7) : words[2]);
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr != nullptr && (one->ifa_flags & IFF_UP) != 0) add(address_text(one->ifa_addr));
    }
    ::freeifaddrs(all);
  }
  std::stable_partition(found.begin(), found.end(), [](const std::string& address) { return !is_loopback(address); });
  return found;
}

}  // namespace ddrun::remote
