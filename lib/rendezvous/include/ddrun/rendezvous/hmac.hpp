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

/// HMAC-SHA256 (RFC 2104) with one key. Made of libcrypto's SHA-256 alone: its EVP layer would bring all its algorithms
/// into a static program, and their relocations into each start of it. The key is wiped at the end of its life.
class HmacKey {
 public:
  explicit HmacKey(std::string_view key);
  explicit HmacKey(const Digest& key) : HmacKey(view(key)) {}
  HmacKey(const HmacKey&) = default;
  HmacKey& operator=(const HmacKey&) = default;
  ~HmacKey();

  /// Of the parts, one after the other.
  [[nodiscard]] Digest sign(std::initializer_list<std::string_view> parts) const;

 private:
  // SHA-256's state after the block that each of the two sums begins with.
  std::array<std::uint32_t, 8> inner_;
  std::array<std::uint32_t, 8> outer_;
};

/// Takes as long whatever they hold. Of different sizes: false.
[[nodiscard]] bool equal_in_constant_time(std::string_view one, std::string_view other);

/// Overwrites what must not be found in memory.
void wipe(void* data, std::size_t size);

}  // namespace ddrun::rendezvous
