#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddrun {

/// A file of /proc or /sys, trailing blanks taken off; nothing if it cannot be read. At most `limit` bytes.
[[nodiscard]] std::optional<std::string> read_small_file(const std::string& path, std::size_t limit = 1U << 16U);

/// The number in a file that holds one; nothing if it is missing, "max", or no number.
[[nodiscard]] std::optional<std::int64_t> read_number(const std::string& path);

/// The number after `key` in a file of lines "key number", such as memory.events or /proc/vmstat.
[[nodiscard]] std::optional<std::int64_t> read_keyed_number(const std::string& path, std::string_view key);

}  // namespace ddrun
