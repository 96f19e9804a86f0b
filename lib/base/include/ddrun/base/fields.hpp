#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddrun/base/bytes.hpp"

// Values as bytes one after the other: integers, booleans, enums in a byte, strings and lists behind their 32-bit
// length, and any type with a function `fields(visitor, value)`, which passes its members to the visitor in their order
// and serves both ways. An enum is read by a function `last(kind)`, its highest value.

namespace ddrun::bytes {

struct FieldWriter {
  std::string& to;

  void operator()(const auto&... values) { (one(values), ...); }

  void one(std::integral auto number) { put(to, number); }
  template <class Kind>
  requires std::is_enum_v<Kind>
  void one(Kind kind) { put(to, static_cast<std::uint8_t>(kind)); }
  void one(const std::string& text) { put_text(to, text); }
  template <class First, class Second>
  void one(const std::pair<First, Second>& both) {
    (*this)(both.first, both.second);
  }
  template <class Item>
  void one(const std::vector<Item>& items) {
    put(to, static_cast<std::uint32_t>(items.size()));
    for (const Item& item : items) one(item);
  }
  template <class Value>
  void one(const Value& value) requires requires {
    fields(*this, value);
  }
  { fields(*this, value); }
};

/// After the first value that does not fit, `from` is not ok, and further values are 0 or empty. Allocates in
/// proportion to what was read.
struct FieldReader {
  Reader& from;

  void operator()(auto&... values) { (one(values), ...); }

  template <std::integral Integer>
  void one(Integer& number) {
    number = from.number<Integer>();
  }
  void one(bool& boolean) { boolean = from.boolean(); }
  template <class Kind>
  requires std::is_enum_v<Kind>
  void one(Kind& kind) { kind = from.choice<Kind>(static_cast<std::uint8_t>(last(kind))); }
  void one(std::string& text) { text = from.text(); }
  template <class First, class Second>
  void one(std::pair<First, Second>& both) {
    (*this)(both.first, both.second);
  }
  template <class Item>
  void one(std::vector<Item>& items) {
    // Of a list of strings as little as their lengths.
    constexpr std::size_t smallest = std::same_as<Item, std::string> ? 4 : 1;
    for (auto left = from.count(smallest); left > 0 && from.ok(); --left) one(items.emplace_back());
  }
  template <class Value>
  void one(Value& value) requires requires {
    fields(*this, value);
  }
  { fields(*this, value); }
};

}  // namespace ddrun::bytes
