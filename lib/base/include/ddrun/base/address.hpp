#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/ip_address.hpp"

namespace ddrun {

/// An IP address and a port as a sockaddr, for the socket system calls.
struct SocketAddress {
  /// Of "127.0.0.1", "::1", "[::1]" or "fe80::1%eth0"; nullopt for anything else. Never resolves a name.
  [[nodiscard]] static std::optional<SocketAddress> parse(std::string_view address, std::uint16_t port);

  sockaddr_storage storage{};
  socklen_t size = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] std::uint16_t port() const;
  void set_port(std::uint16_t port);
  /// Loopback or "any" address: exists on every machine that supports the family.
  [[nodiscard]] bool is_wildcard_or_loopback() const;
  /// "127.0.0.1:29500", "[::1]:29500"
  [[nodiscard]] std::string text() const;
};

/// The address of SocketAddress::parse(); 127.0.0.1 and ::1 for "localhost"; empty for any other name.
[[nodiscard]] std::vector<SocketAddress> literal_socket_addresses(std::string_view address, std::uint16_t port);

/// The local address of a socket.
[[nodiscard]] std::optional<SocketAddress> local_socket_address(int fd);

/// The address at the other end of a connection.
[[nodiscard]] std::optional<SocketAddress> peer_socket_address(int fd);

/// The addresses of all interfaces that are up, sorted and unique; empty if getifaddrs() fails. Does not block.
[[nodiscard]] std::vector<IpAddress> own_addresses();
/// The name of the interface that is up and has this address; empty if there is none.
[[nodiscard]] std::string interface_of(const IpAddress& address);

}  // namespace ddrun
