#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "ddrun/base/bytes.hpp"
#include "ddrun/base/text.hpp"

// Numbers of the protocol and the encoding of its fields, defined in docs/store.md; and their text for messages.
namespace ddrun::store::wire {

enum class Opcode : std::uint8_t {
  validate = 0x00,
  set = 0x01,
  compare_set = 0x02,
  get = 0x03,
  add = 0x04,
  check = 0x05,
  wait = 0x06,
  num_keys = 0x07,
  delete_key = 0x08,
  append = 0x09,
  multi_get = 0x0a,
  multi_set = 0x0b,
  cancel_wait = 0x0c,
  ping = 0x0d,
  queue_push = 0x0e,
  queue_pop = 0x0f,
  queue_len = 0x10,
  list_keys = 0x11,
  barrier = 0x12,
  watch_key = 0x13,  // only in the old dialect, with another number
};

/// Size of tables indexed by Opcode.
inline constexpr std::size_t opcode_count = 0x14;

/// As docs/store.md writes it: "SET", "QUEUE_PUSH".
[[nodiscard]] inline std::string_view opcode_name(Opcode op) {
  constexpr std::string_view names[] = {"VALIDATE",  "SET",       "COMPARE_SET", "GET",        "ADD",
                                        "CHECK",     "WAIT",      "GETNUMKEYS",  "DELETE_KEY", "APPEND",
                                        "MULTI_GET", "MULTI_SET", "CANCEL_WAIT", "PING",       "QUEUE_PUSH",
                                        "QUEUE_POP", "QUEUE_LEN", "LIST_KEYS",   "BARRIER",    "WATCH_KEY"};
  static_assert(std::size(names) == opcode_count);
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(names) ? names[index] : "?";
}

/// For messages: control characters become '?', and a long key is cut.
[[nodiscard]] inline std::string printable(std::string_view key) {
  constexpr std::size_t max_shown = 60;
  std::string text(key.substr(0, max_shown));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  if (key.size() > max_shown) text += "...";
  return text;
}

/// "key a", "keys a, b and 7 more"
[[nodiscard]] inline std::string describe_keys(std::span<const std::string> keys) {
  constexpr std::size_t max_shown = 3;
  if (keys.size() == 1) return concat("key ", printable(keys[0]));
  std::string text = "keys ";
  for (std::size_t i = 0; i < std::min(keys.size(), max_shown); ++i) text += (i > 0 ? ", " : "") + printable(keys[i]);
  if (keys.size() > max_shown) text += concat(" and ", keys.size() - max_shown, " more");
  return text;
}

inline constexpr std::uint32_t magic = 0x3c85f7ce;

inline constexpr char check_ready = 0;
inline constexpr char check_not_ready = 1;
inline constexpr char wait_stopped = 0;
inline constexpr char wait_cancelled = 1;
inline constexpr char watch_registered = 3;

inline constexpr std::uint64_t max_key = 8192;
inline constexpr std::uint64_t max_value = 8 * 1024 * 1024;
inline constexpr std::uint64_t max_keys = 131072;
/// Limit of one request, one reply, one stored value; bytes. The protocol itself has no such limit.
inline constexpr std::size_t max_message = 256 * 1024 * 1024;

using bytes::load;
using bytes::put;

inline void put_bytes(std::string& to, std::string_view text) { bytes::put_text<std::uint64_t>(to, text); }

}  // namespace ddrun::store::wire
