#pragma once

#include <string>
#include <string_view>

namespace ddrun::rendezvous {

/// Half of an HMAC-SHA256 in hexadecimal: tells texts apart without showing them. Apart from hmac.hpp, so
/// that the coordinator includes no cryptography.
[[nodiscard]] std::string fingerprint(std::string_view text);

}  // namespace ddrun::rendezvous
