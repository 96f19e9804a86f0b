#pragma once

#include <string>
#include <string_view>

namespace ddrun::allreduce {

/// Valid UTF-8 without control characters: '?' in place of each byte that is none. File and host names may be any
/// bytes, and pictures are for programs that stop at such.
[[nodiscard]] std::string printable(std::string_view text);

/// The same, and with its middle left out if it has more than `most` characters.
[[nodiscard]] std::string printable(std::string_view text, std::size_t most);

}  // namespace ddrun::allreduce
