#pragma once

#include <string_view>

namespace ddrun::agent {

/// Whether a worker's complaint is about others: what the libraries of this field say when a peer, or the store, is
/// gone or does not answer. Whoever says so is a victim of a failure, as a rule, and not its cause. `text` may have
/// several lines; escape sequences are taken out.
[[nodiscard]] bool is_victims_words(std::string_view text);

}  // namespace ddrun::agent
