#include "ddrun/base/socket_address.hpp"

#include <arpa/inet.h>
#include <net/if.h>

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
  // Both families have it in the same place.
  return ntohs(load<sockaddr_in>(*this).sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  auto address = load<sockaddr_in>(*this);
  address.sin_port = htons(port);
  std::memcpy(&storage, &address, sizeof address);
}

bool SocketAddress::stands_for_family() const {
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

}  // namespace ddrun
