#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddrun::lease {

/// Any bytes as one word: letters, digits and `-._` as they are, others as %XX; "%" for no bytes. Fit for a key of
/// etcd, for a word of a line, and for JSON as it is. Each text has its own, and no other word is one.
[[nodiscard]] std::string to_word(std::string_view text);
[[nodiscard]] std::optional<std::string> from_word(std::string_view word);

}  // namespace ddrun::lease
