#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ddrun/store/store.hpp"

// What every store refuses before it does anything, in the same words. A server would only hang up.
namespace ddrun::store {

[[nodiscard]] Result<void> check_key(std::string_view key);
[[nodiscard]] Result<void> check_value(std::string_view key, std::string_view value);
[[nodiscard]] Result<void> check_keys(std::span<const std::string> keys);
[[nodiscard]] Result<void> check_pairs(std::span<const std::string> keys, std::span<const std::string> values);

/// "key a", "keys a, b and 7 more", with what cannot be shown left out.
[[nodiscard]] std::string describe_keys(std::span<const std::string> keys);

}  // namespace ddrun::store
