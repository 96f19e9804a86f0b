#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

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

/// A host and an optional port, as typed.
struct HostPort {
  std::string host;                 ///< name or address, without brackets
  std::optional<std::string> port;  ///< the text after the colon, not checked
};

/// Splits "node0", "node0:29400", "[fd00::1]:29400", "[fd00::1]" and "fd00::1" (two colons without brackets: an IPv6
/// address without a port). nullopt for an unclosed bracket, or text other than a port after it.
[[nodiscard]] std::optional<HostPort> split_host_port(std::string_view text);

/// "node0:29400", "[fd00::1]:29400"; port 0 is left out.
[[nodiscard]] std::string host_port_text(std::string_view host, int port);

/// An IP address without a port. An IPv4 address equals its IPv4-mapped IPv6 address ("::ffff:10.0.0.1"); the zone of a
/// link-local address ("%eth0") is ignored.
class IpAddress {
 public:
  /// Of "10.0.0.1", "::1", "[::1]", "fe80::1%eth0"; nullopt for anything else. Never resolves a name.
  [[nodiscard]] static std::optional<IpAddress> parse(std::string_view text);
  /// nullopt for other address families.
  [[nodiscard]] static std::optional<IpAddress> of(const sockaddr_storage& socket_address);

  [[nodiscard]] bool is_v4() const;
  /// 127.0.0.0/8 and ::1
  [[nodiscard]] bool is_loopback() const;
  /// fe80::/10, valid only together with an interface of the machine that uses it.
  [[nodiscard]] bool is_link_local() const;
  /// 0.0.0.0 and ::; also a default-constructed address.
  [[nodiscard]] bool is_unspecified() const;
  /// "10.0.0.1", "fd00::7"
  [[nodiscard]] std::string text() const;
  /// Length of the common prefix in bits, of 128; a longer prefix usually means a nearer machine.
  [[nodiscard]] int common_bits(const IpAddress& other) const;

  auto operator<=>(const IpAddress&) const = default;

 private:
  std::array<std::uint8_t, 16> bytes_{};
};

/// The addresses of all interfaces that are up, sorted and unique; empty if getifaddrs() fails. Does not block.
[[nodiscard]] std::vector<IpAddress> own_addresses();
/// The name of the interface that is up and has this address; empty if there is none.
[[nodiscard]] std::string interface_of(const IpAddress& address);

}  // namespace ddrun
