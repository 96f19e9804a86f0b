#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"

// Limits that the client checks before it sends: a server would only close the connection.
namespace ddrun::store {

[[nodiscard]] Result<void> check_key(std::string_view key);
[[nodiscard]] Result<void> check_value(std::string_view key, std::string_view value);
[[nodiscard]] Result<void> check_keys(std::span<const std::string> keys);

/// "key a", "keys a, b and 7 more"; control characters become '?'.
[[nodiscard]] std::string describe_keys(std::span<const std::string> keys);

}  // namespace ddrun::store
