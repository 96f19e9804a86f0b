#pragma once

#include <optional>
#include <string>

#include "ddrun/rendezvous/messages.hpp"

// How a job has ended, as it is recorded with its lease for those who come later: lib/rendezvous/PROTOCOL.md,
// section 10.

namespace ddrun::rendezvous {

/// JSON of at most 16 KiB. What the node said about the cause is not in it.
[[nodiscard]] std::string serialize_verdict(const VerdictMessage& verdict);

/// Nothing for a text that is none.
[[nodiscard]] std::optional<VerdictMessage> parse_verdict(const std::string& text);

}  // namespace ddrun::rendezvous
