#include "random_id.hpp"

#include <array>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/random_bytes.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::rendezvous {

std::string random_id() {
  std::array<std::byte, 16> bytes{};
  if (!fill_random(bytes)) {
    // Only uniqueness matters.
    const auto now = Clock::now().time_since_epoch().count();
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(now >> i);
  }
  bytes[6] = (bytes[6] & std::byte{0x0f}) | std::byte{0x40};
  bytes[8] = (bytes[8] & std::byte{0x3f}) | std::byte{0x80};
  const std::string digits = in_hex(bytes);
  const std::string_view all = digits;
  return concat(all.substr(0, 8), '-', all.substr(8, 4), '-', all.substr(12, 4), '-', all.substr(16, 4), '-',
                all.substr(20));
}

}  // namespace ddrun::rendezvous
