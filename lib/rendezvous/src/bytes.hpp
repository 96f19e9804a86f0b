#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

// Integers and texts as the control protocol has them: little-endian, a text behind its u32 length.
namespace ddrun::rendezvous {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the protocol's integers are copied as they are");

template <std::integral Integer>
void put(std::string& to, Integer value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// A length that does not fit is not to be had: no text of the protocol is anywhere near.
inline void put_text(std::string& to, std::string_view text) {
  put(to, static_cast<std::uint32_t>(text.size()));
  to.append(text);
}

template <std::integral Integer>
[[nodiscard]] Integer load(const char* from) {
  Integer value;
  std::memcpy(&value, from, sizeof value);
  return value;
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
  std::string text() { return std::string(take(number<std::uint32_t>())); }
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

}  // namespace ddrun::rendezvous
