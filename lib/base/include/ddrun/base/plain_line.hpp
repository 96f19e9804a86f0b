#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ddrun {

/// A line that a worker wrote, fit for a message or a report of ours: without escape sequences and control characters
/// (nothing of it can move the cursor, change a title or a colour), tabs as four blanks, and of what a progress bar
/// wrote over, the last state. Bytes that are not UTF-8 become '?'. Whatever workers wrote goes through here before it
/// is said.
[[nodiscard]] std::string plain_line(std::string_view text);

/// At most `columns` characters of it, with "..." behind if some are left out; never half a UTF-8 sequence.
[[nodiscard]] std::string cut_line(std::string text, std::size_t columns);

}  // namespace ddrun
