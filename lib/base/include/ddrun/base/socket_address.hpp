#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun {

/// An IP address and a port, as the system calls want them.
struct SocketAddress {
  /// From "127.0.0.1", "::1", "[::1]" or "fe80::1%eth0"; nothing for anything else. Never looks up a name.
  [[nodiscard]] static std::optional<SocketAddress> parse(std::string_view address, std::uint16_t port);

  sockaddr_storage storage{};
  socklen_t size = 0;

  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] std::uint16_t port() const;
  void set_port(std::uint16_t port);
  /// The loopback or "any" address: every machine that has the family has it.
  [[nodiscard]] bool stands_for_family() const;
  /// "127.0.0.1:29500", "[::1]:29500"
  [[nodiscard]] std::string text() const;
};

/// What SocketAddress::parse makes of it, and "localhost" as the addresses it stands for; empty for a name.
[[nodiscard]] std::vector<SocketAddress> literal_socket_addresses(std::string_view address, std::uint16_t port);

/// The local address of a socket.
[[nodiscard]] std::optional<SocketAddress> local_socket_address(int fd);

/// The address at the other end of a connection.
[[nodiscard]] std::optional<SocketAddress> peer_socket_address(int fd);

}  // namespace ddrun
