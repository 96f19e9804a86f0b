#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

namespace ddrun {

/// Fills `bytes` with what the kernel takes for secret. Waits only on a machine that has just started. Fails with
/// `unavailable` if the kernel gives nothing; then what is in `bytes` means nothing.
[[nodiscard]] Result<void> fill_random(std::span<std::byte> bytes);

}  // namespace ddrun

// Integers and texts in the messages of ddrun's protocols: of fixed size, least significant byte first where nothing
// else is said; a text stands behind its length.
namespace ddrun::bytes {

template <std::endian order, std::integral Integer>
[[nodiscard]] Integer in_order(Integer value) {
  if constexpr (order == std::endian::native) return value;
  auto* const first = reinterpret_cast<char*>(&value);
  std::reverse(first, first + sizeof value);
  return value;
}

template <std::endian order = std::endian::little, class String, std::integral Integer>
void put(String& to, Integer value) {
  value = in_order<order>(value);
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The length has to fit into `Length`.
template <std::unsigned_integral Length = std::uint32_t>
void put_text(std::string& to, std::string_view text) {
  put(to, static_cast<Length>(text.size()));
  to.append(text);
}

template <std::integral Integer, std::endian order = std::endian::little>
[[nodiscard]] Integer load(const char* from) {
  Integer value;
  std::memcpy(&value, from, sizeof value);
  return in_order<order>(value);
}

/// Takes values from the front of what came. Once something does not fit all that follows is 0 and empty, and `ok` is
/// false. Never allocates more than what is left to be read.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] std::string_view left() const { return left_; }

  template <std::integral Integer>
  Integer number() {
    const auto bytes = take(sizeof(Integer));
    return ok_ ? load<Integer>(bytes.data()) : Integer{};
  }
  bool boolean() { return choice<std::uint8_t>(1) != 0; }
  /// A number that may be at most `highest`.
  template <class Value>
  Value choice(std::uint8_t highest) {
    const auto value = number<std::uint8_t>();
    if (value > highest) fail();
    return static_cast<Value>(ok_ ? value : 0);
  }
  /// A part of what came, behind its length of 32 bits.
  std::string_view text() { return take(number<std::uint32_t>()); }
  /// Of things that take `smallest` bytes each at least: never more than can be there.
  std::uint32_t count(std::size_t smallest) {
    const auto claimed = number<std::uint32_t>();
    if (claimed > left_.size() / smallest) fail();
    return ok_ ? claimed : 0;
  }

 private:
  std::string_view take(std::size_t size) {
    if (size > left_.size()) fail();
    if (!ok_) return {};
    const auto taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  void fail() {
    ok_ = false;
    left_ = {};
  }

  std::string_view left_;
  bool ok_ = true;
};

}  // namespace ddrun::bytes
