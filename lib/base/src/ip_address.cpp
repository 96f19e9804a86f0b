#include "ddrun/base/ip_address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace ddrun {

namespace {

// What IPv4 addresses have before their four bytes.
constexpr std::array<std::uint8_t, 12> v4_prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

}  // namespace

std::optional<IpAddress> IpAddress::parse(std::string_view text) {
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  IpAddress address;
  const bool has_zone = text.find('%') != std::string_view::npos;
  const std::string plain(text.substr(0, text.find('%')));
  if (!has_zone && ::inet_pton(AF_INET, plain.c_str(), address.bytes_.data() + v4_prefix.size()) == 1) {
    std::copy(v4_prefix.begin(), v4_prefix.end(), address.bytes_.begin());
    return address;
  }
  if (::inet_pton(AF_INET6, plain.c_str(), address.bytes_.data()) == 1) return address;
  return std::nullopt;
}

std::optional<IpAddress> IpAddress::of(const sockaddr_storage& socket_address) {
  IpAddress address;
  if (socket_address.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &socket_address, sizeof v4);
    std::copy(v4_prefix.begin(), v4_prefix.end(), address.bytes_.begin());
    std::memcpy(address.bytes_.data() + v4_prefix.size(), &v4.sin_addr, sizeof v4.sin_addr);
    return address;
  }
  if (socket_address.ss_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, &socket_address, sizeof v6);
    std::memcpy(address.bytes_.data(), &v6.sin6_addr, sizeof v6.sin6_addr);
    return address;
  }
  return std::nullopt;
}

bool IpAddress::is_v4() const { return std::equal(v4_prefix.begin(), v4_prefix.end(), bytes_.begin()); }

bool IpAddress::is_loopback() const {
  if (is_v4()) return bytes_[v4_prefix.size()] == 127;
  return std::all_of(bytes_.begin(), bytes_.end() - 1, [](std::uint8_t byte) { return byte == 0; }) &&
         bytes_.back() == 1;
}

bool IpAddress::is_link_local() const { return bytes_[0] == 0xfe && (bytes_[1] & 0xc0U) == 0x80; }

bool IpAddress::is_unspecified() const {
  return std::all_of(is_v4() ? bytes_.begin() + v4_prefix.size() : bytes_.begin(), bytes_.end(),
                     [](std::uint8_t byte) { return byte == 0; });
}

std::string IpAddress::text() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (is_v4()) {
    ::inet_ntop(AF_INET, bytes_.data() + v4_prefix.size(), text, sizeof text);
  } else {
    ::inet_ntop(AF_INET6, bytes_.data(), text, sizeof text);
  }
  return text;
}

std::vector<IpAddress> own_addresses() {
  std::vector<IpAddress> addresses;
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return addresses;
  for (const ifaddrs* entry = interfaces; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    sockaddr_storage storage{};
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::memcpy(&storage, entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (const auto address = IpAddress::of(storage)) addresses.push_back(*address);
  }
  ::freeifaddrs(interfaces);
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  return addresses;
}

}  // namespace ddrun
