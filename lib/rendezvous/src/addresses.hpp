#pragma once

#include <string>

// IP addresses as text.

namespace ddrun::rendezvous {

/// An IPv4 or IPv6 address, not a name.
[[nodiscard]] bool is_address(const std::string& host);
/// 127.0.0.0/8 and ::1.
[[nodiscard]] bool is_loopback(const std::string& address);
[[nodiscard]] bool is_unspecified(const std::string& address);
/// The one way to write an address, so that two can be compared; an IPv4 address written as IPv6 becomes IPv4 again.
[[nodiscard]] std::string canonical_address(const std::string& address);

}  // namespace ddrun::rendezvous
