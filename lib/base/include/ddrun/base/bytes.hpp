#pragma once

#include <string.h>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

namespace ddrun {

/// Fills `bytes` from getrandom(2). Blocks only until the kernel's pool is initialised, shortly after boot. Fails with
/// `unavailable`; the content of `bytes` is then unspecified.
[[nodiscard]] Result<void> fill_random(std::span<std::byte> bytes);

/// Wipes memory on deallocation, also when a container grows.
template <class T>
struct WipingAllocator {
  using value_type = T;
  WipingAllocator() = default;
  template <class U>
  WipingAllocator(const WipingAllocator<U>& /*other*/) noexcept {
  }  // NOLINT(google-explicit-constructor): as containers do
  T* allocate(std::size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* memory, std::size_t count) noexcept {
    ::explicit_bzero(memory, count * sizeof(T));
    std::allocator<T>().deallocate(memory, count);
  }
  bool operator==(const WipingAllocator&) const = default;
};

/// For strings that may contain a secret. (Strings below 16 bytes are stored in the object itself and not wiped.)
using WipedString = std::basic_string<char, std::char_traits<char>, WipingAllocator<char>>;

inline void wipe(std::string& text) {
  ::explicit_bzero(text.data(), text.size());
  text.clear();
}

}  // namespace ddrun

// Integers and strings in the messages of ddrun's protocols: fixed size, little endian unless stated otherwise; a
// string follows its length.
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

/// Precondition: the length fits into `Length`.
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

/// Decodes values from the front of a buffer, which it borrows. After the first value that does not fit, ok() is false
/// and all further values are 0 or empty. Never allocates more than the remaining input.
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
  /// A string with a 32-bit length; points into the buffer.
  std::string_view text() { return take(number<std::uint32_t>()); }
  /// An element count; fails if the rest cannot hold that many elements of at least `smallest` bytes.
  std::uint32_t count(std::size_t smallest) {
    const auto claimed = number<std::uint32_t>();
    if (claimed > left_.size() / smallest) fail();
    return ok_ ? claimed : 0;
  }

 private:
  std::string_view take(std::size_t size) {
    if (size > left_.size()) fail();
    if (!ok_) return {};
    const auto part = left_.substr(0, size);
    left_.remove_prefix(size);
    return part;
  }
  void fail() {
    ok_ = false;
    left_ = {};
  }

  std::string_view left_;
  bool ok_ = true;
};

}  // namespace ddrun::bytes
