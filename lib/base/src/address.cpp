#include "ddrun/base/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun {

namespace {

template <class Address>
Address load(const SocketAddress& endpoint) {
  Address address;
  std::memcpy(&address, &endpoint.storage, sizeof address);
  return address;
}

template <class Address>
SocketAddress make(const Address& address) {
  SocketAddress endpoint;
  std::memcpy(&endpoint.storage, &address, sizeof address);
  endpoint.size = sizeof address;
  return endpoint;
}

}  // namespace

std::uint16_t SocketAddress::port() const {
  // The port has the same offset in both families.
  return ntohs(load<sockaddr_in>(*this).sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  auto address = load<sockaddr_in>(*this);
  address.sin_port = htons(port);
  std::memcpy(&storage, &address, sizeof address);
}

bool SocketAddress::is_wildcard_or_loopback() const {
  if (family() == AF_INET6) {
    const auto address = load<sockaddr_in6>(*this).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&address) || IN6_IS_ADDR_UNSPECIFIED(&address);
  }
  const auto address = ntohl(load<sockaddr_in>(*this).sin_addr.s_addr);
  return address == INADDR_ANY || address >> 24 == IN_LOOPBACKNET;
}

std::string SocketAddress::text() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET6) {
    const auto address = load<sockaddr_in6>(*this);
    ::inet_ntop(AF_INET6, &address.sin6_addr, host, sizeof host);
    return concat('[', host, "]:", port());
  }
  const auto address = load<sockaddr_in>(*this);
  ::inet_ntop(AF_INET, &address.sin_addr, host, sizeof host);
  return concat(host, ':', port());
}

std::optional<SocketAddress> SocketAddress::parse(std::string_view address, std::uint16_t port) {
  if (address.size() > 2 && address.front() == '[' && address.back() == ']') {
    address = address.substr(1, address.size() - 2);
  }
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (::inet_pton(AF_INET, std::string(address).c_str(), &v4.sin_addr) == 1) return make(v4);

  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (const auto percent = address.find('%'); percent != std::string_view::npos) {
    const std::string zone(address.substr(percent + 1));
    v6.sin6_scope_id = ::if_nametoindex(zone.c_str());
    if (v6.sin6_scope_id == 0) {
      const auto number = parse_integer(zone, 1, 0x7fffffff);
      if (!number) return std::nullopt;
      v6.sin6_scope_id = static_cast<std::uint32_t>(*number);
    }
    address = address.substr(0, percent);
  }
  if (::inet_pton(AF_INET6, std::string(address).c_str(), &v6.sin6_addr) == 1) return make(v6);
  return std::nullopt;
}

std::vector<SocketAddress> literal_socket_addresses(std::string_view address, std::uint16_t port) {
  if (address == "localhost") return {*SocketAddress::parse("127.0.0.1", port), *SocketAddress::parse("::1", port)};
  if (const auto endpoint = SocketAddress::parse(address, port)) return {*endpoint};
  return {};
}

std::optional<SocketAddress> local_socket_address(int fd) {
  SocketAddress endpoint;
  endpoint.size = sizeof endpoint.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&endpoint.storage), &endpoint.size) != 0) return std::nullopt;
  return endpoint;
}

std::optional<SocketAddress> peer_socket_address(int fd) {
  SocketAddress endpoint;
  endpoint.size = sizeof endpoint.storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&endpoint.storage), &endpoint.size) != 0) return std::nullopt;
  return endpoint;
}

std::optional<HostPort> split_host_port(std::string_view text) {
  if (text.starts_with('[')) {
    const std::size_t bracket = text.find(']');
    if (bracket == std::string_view::npos) return std::nullopt;
    const std::string host(text.substr(1, bracket - 1));
    const std::string_view rest = text.substr(bracket + 1);
    if (rest.empty()) return HostPort{host, std::nullopt};
    if (rest.front() != ':') return std::nullopt;
    return HostPort{host, std::string(rest.substr(1))};
  }
  const std::size_t colon = text.find(':');
  const bool is_host_only = colon == std::string_view::npos || text.find(':', colon + 1) != std::string_view::npos;
  if (is_host_only) return HostPort{std::string(text), std::nullopt};
  return HostPort{std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

std::string host_port_text(std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  std::string text = v6 ? concat('[', host, ']') : std::string(host);
  if (port != 0) text += concat(':', port);
  return text;
}

namespace {

// Prefix of IPv4-mapped IPv6 addresses.
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

int IpAddress::common_bits(const IpAddress& other) const {
  const auto [difference, other_byte] = std::mismatch(bytes_.begin(), bytes_.end(), other.bytes_.begin());
  const int whole = static_cast<int>(difference - bytes_.begin()) * 8;
  return difference == bytes_.end() ? whole
                                    : whole + std::countl_zero(static_cast<std::uint8_t>(*difference ^ *other_byte));
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

namespace {

/// Calls `visit` with each interface's name and address.
template <class Visit>
void for_each_address(Visit visit) {
  ifaddrs* interfaces = nullptr;
  if (::getifaddrs(&interfaces) != 0) return;
  for (const ifaddrs* entry = interfaces; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    sockaddr_storage storage{};
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::memcpy(&storage, entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (const auto address = IpAddress::of(storage)) visit(entry->ifa_name, *address);
  }
  ::freeifaddrs(interfaces);
}

}  // namespace

std::string interface_of(const IpAddress& address) {
  std::string found;
  for_each_address([&](const char* name, const IpAddress& one) {
    if (found.empty() && one == address) found = name;
  });
  return found;
}

std::vector<IpAddress> own_addresses() {
  std::vector<IpAddress> addresses;
  for_each_address([&](const char* /*name*/, const IpAddress& one) { addresses.push_back(one); });
  std::sort(addresses.begin(), addresses.end());
  addresses.erase(std::unique(addresses.begin(), addresses.end()), addresses.end());
  return addresses;
}

}  // namespace ddrun
