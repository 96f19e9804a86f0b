#pragma once

#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddrun {

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

  auto operator<=>(const IpAddress&) const = default;

 private:
  std::array<std::uint8_t, 16> bytes_{};
};

/// Those of all interfaces of this machine that are up, in order and without doubles; empty if the system does not
/// tell. Looks at interfaces only, asks nobody, and does not wait.
[[nodiscard]] std::vector<IpAddress> own_addresses();

}  // namespace ddrun
