#pragma once

#include <optional>
#include <string_view>

/// The value of a variable of ddrun's own environment; nothing if it is unset or empty.
[[nodiscard]] std::optional<std::string_view> variable(std::string_view name);
