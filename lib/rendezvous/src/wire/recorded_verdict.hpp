#pragma once

#include <optional>
#include <string>

#include "ddrun/rendezvous/messages.hpp"

// The verdict as recorded with a job's lease: lib/rendezvous/PROTOCOL.md, section 10.

namespace ddrun::rendezvous {

/// JSON of at most 16 KiB, without the details of the cause.
[[nodiscard]] std::string serialize_verdict(const VerdictMessage& verdict);

/// Empty for invalid text.
[[nodiscard]] std::optional<VerdictMessage> parse_verdict(const std::string& text);

}  // namespace ddrun::rendezvous
