#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace ddrun::rendezvous {

using Digest = std::array<std::uint8_t, 32>;

inline std::string_view view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

/// HMAC-SHA256 (RFC 2104) with one key. Uses only libcrypto's SHA-256: the EVP layer would link all its algorithms into
/// a static program, and cost relocations at each start. The key is wiped on destruction.
class HmacKey {
 public:
  explicit HmacKey(std::string_view key);
  explicit HmacKey(const Digest& key) : HmacKey(view(key)) {}
  HmacKey(const HmacKey&) = default;
  HmacKey& operator=(const HmacKey&) = default;
  ~HmacKey();

  /// Over the concatenated parts.
  [[nodiscard]] Digest sign(std::initializer_list<std::string_view> parts) const;

 private:
  // SHA-256's state after the first block of the inner and the outer hash.
  std::array<std::uint32_t, 8> inner_;
  std::array<std::uint32_t, 8> outer_;
};

/// Takes the same time for any content. Different sizes: false.
[[nodiscard]] bool equal_in_constant_time(std::string_view one, std::string_view other);

/// Overwrites memory; not optimized away.
void wipe(void* data, std::size_t size);

}  // namespace ddrun::rendezvous
