#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Addresses as values and text: no system header, no socket.

struct sockaddr_storage;

namespace ddrun {

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

}  // namespace ddrun
