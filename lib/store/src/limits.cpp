#include "limits.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"
#include "ddrun/store/tcp_client.hpp"
#include "wire.hpp"

namespace ddrun::store {

static_assert(max_key_size + 1 == wire::max_key, "the client puts one character in front of a key");
static_assert(max_value_size == wire::max_value && max_keys_per_call == wire::max_keys);

namespace {

std::string shown(std::string_view key) {
  constexpr std::size_t enough = 60;
  std::string text(key.substr(0, enough));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  if (key.size() > enough) text += "...";
  return text;
}

}  // namespace

Result<void> check_key(std::string_view key) {
  if (key.size() <= max_key_size) return {};
  return fail(Errc::invalid_argument, concat("store key '", shown(key), "' has ", key.size(), " bytes; at most ",
                                             max_key_size, " are allowed"));
}

Result<void> check_value(std::string_view key, std::string_view value) {
  if (auto ok = check_key(key); !ok) return ok;
  if (value.size() <= max_value_size) return {};
  return fail(Errc::invalid_argument, concat("the value for store key '", shown(key), "' has ", value.size(),
                                             " bytes; at most ", max_value_size, " are allowed: split it"));
}

Result<void> check_keys(std::span<const std::string> keys) {
  if (keys.size() > max_keys_per_call) {
    return fail(Errc::invalid_argument, concat("one store call names ", keys.size(), " keys; at most ",
                                               max_keys_per_call, " are allowed: make several calls"));
  }
  for (const auto& key : keys) {
    if (auto ok = check_key(key); !ok) return ok;
  }
  return {};
}

std::string describe_keys(std::span<const std::string> keys) {
  constexpr std::size_t enough = 3;
  if (keys.size() == 1) return concat("key ", shown(keys[0]));
  std::string text = "keys ";
  for (std::size_t i = 0; i < std::min(keys.size(), enough); ++i) text += (i > 0 ? ", " : "") + shown(keys[i]);
  if (keys.size() > enough) text += concat(" and ", keys.size() - enough, " more");
  return text;
}

}  // namespace ddrun::store
