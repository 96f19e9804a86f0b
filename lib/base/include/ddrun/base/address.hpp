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
  [[nodiscard]] bool is_wildcard_or_loopback() const;
  /// "127.0.0.1:29500", "[::1]:29500"
  [[nodiscard]] std::string text() const;
};

/// What SocketAddress::parse makes of it, and "localhost" as the addresses it stands for; empty for a name.
[[nodiscard]] std::vector<SocketAddress> literal_socket_addresses(std::string_view address, std::uint16_t port);

/// The local address of a socket.
[[nodiscard]] std::optional<SocketAddress> local_socket_address(int fd);

/// The address at the other end of a connection.
[[nodiscard]] std::optional<SocketAddress> peer_socket_address(int fd);

/// Where something is, as people write it.
struct HostPort {
  std::string host;                 ///< name or address, without brackets
  std::optional<std::string> port;  ///< what stands behind the colon, whatever it is
};

/// "node0", "node0:29400", "[fd00::1]:29400", "[fd00::1]", and "fd00::1", since two colons without brackets are an IPv6
/// address alone. Nothing for a bracket that is not closed, or with something else than a port behind it.
[[nodiscard]] std::optional<HostPort> split_host_port(std::string_view text);

/// "node0:29400", "[fd00::1]:29400"; port 0 is left out.
[[nodiscard]] std::string host_port_text(std::string_view host, int port);

/// Which machine, whatever the port: an IPv4 address and the IPv6 address that stands for it ("::ffff:10.0.0.1") are
/// the same. The zone of a link-local address ("%eth0") does not count.
class IpAddress {
 public:
  /// "10.0.0.1", "::1", "[::1]", "fe80::1%eth0"; nothing for anything else. Never looks up a name.
  [[nodiscard]] static std::optional<IpAddress> parse(std::string_view text);
  /// Nothing for another family.
  [[nodiscard]] static std::optional<IpAddress> of(const sockaddr_storage& socket_address);

  [[nodiscard]] bool is_v4() const;
  /// 127.0.0.0/8 and ::1
  [[nodiscard]] bool is_loopback() const;
  /// fe80::/10: means something only together with an interface of the machine that uses it.
  [[nodiscard]] bool is_link_local() const;
  /// 0.0.0.0 and ::, which is also what a default-made one is: no machine in particular.
  [[nodiscard]] bool is_unspecified() const;
  /// "10.0.0.1", "fd00::7"
  [[nodiscard]] std::string text() const;
  /// How many bits are the same before the first that is not, of 128; the more, the nearer two machines are as a rule.
  [[nodiscard]] int common_bits(const IpAddress& other) const;

  auto operator<=>(const IpAddress&) const = default;

 private:
  std::array<std::uint8_t, 16> bytes_{};
};

/// Those of all interfaces of this machine that are up, in order and without doubles; empty if the system does not
/// tell. Looks at interfaces only and does not wait.
[[nodiscard]] std::vector<IpAddress> own_addresses();
/// The name of the interface that is up and has this address; empty if none has.
[[nodiscard]] std::string interface_of(const IpAddress& address);

}  // namespace ddrun
