#include "limits.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "wire.hpp"

namespace ddrun::store {

static_assert(max_key_size + 1 == wire::max_key, "the client puts one character in front of a key");
static_assert(max_value_size == wire::max_value && max_keys_per_call == wire::max_keys);

namespace {

std::string printable(std::string_view key) {
  constexpr std::size_t max_shown = 60;
  std::string text(key.substr(0, max_shown));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  if (key.size() > max_shown) text += "...";
  return text;
}

}  // namespace

Result<void> check_key(std::string_view key) {
  if (key.size() <= max_key_size) return {};
  return fail(Errc::invalid_argument, concat("store key '", printable(key), "' has ", key.size(), " bytes; at most ",
                                             max_key_size, " are allowed"));
}

Result<void> check_value(std::string_view key, std::string_view value) {
  TRY(check_key(key));
  if (value.size() <= max_value_size) return {};
  return fail(Errc::invalid_argument, concat("the value for store key '", printable(key), "' has ", value.size(),
                                             " bytes; at most ", max_value_size, " are allowed: split it"));
}

Result<void> check_keys(std::span<const std::string> keys) {
  if (keys.size() > max_keys_per_call) {
    return fail(Errc::invalid_argument, concat("one store call names ", keys.size(), " keys; at most ",
                                               max_keys_per_call, " are allowed: make several calls"));
  }
  for (const auto& key : keys) TRY(check_key(key));
  return {};
}

std::string describe_keys(std::span<const std::string> keys) {
  constexpr std::size_t max_shown = 3;
  if (keys.size() == 1) return concat("key ", printable(keys[0]));
  std::string text = "keys ";
  for (std::size_t i = 0; i < std::min(keys.size(), max_shown); ++i) text += (i > 0 ? ", " : "") + printable(keys[i]);
  if (keys.size() > max_shown) text += concat(" and ", keys.size() - max_shown, " more");
  return text;
}

}  // namespace ddrun::store
