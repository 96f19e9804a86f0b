#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"

// Encoding of messages: lib/rendezvous/PROTOCOL.md, sections 3 and 4.
namespace ddrun::rendezvous {

/// Whether both sides count messages of this type, to resume a connection without loss: all but those about the
/// connection itself.
[[nodiscard]] bool is_sequenced(std::uint8_t type);

/// Encodes into `payload`, which is replaced; returns the type.
std::uint8_t encode(const FromAgent& message, std::string& payload);
std::uint8_t encode(const FromCoordinator& message, std::string& payload);
/// The same with at most `max_size` bytes: clears optional texts (workers, failures, logs) one by one until it fits.
/// Nothing if the payload is still larger.
std::optional<std::uint8_t> encode(FromAgent& message, std::string& payload, std::size_t max_size);
std::optional<std::uint8_t> encode(FromCoordinator& message, std::string& payload, std::size_t max_size);

/// Ignores bytes after the last field. Errors: `unsupported` for an unknown type; `protocol` for a payload that is
/// truncated, has wrong counts or invalid values. Allocates no more than the payload's size.
[[nodiscard]] Result<FromAgent> decode_from_agent(std::uint8_t type, std::string_view payload);
[[nodiscard]] Result<FromCoordinator> decode_from_coordinator(std::uint8_t type, std::string_view payload);

/// "JOIN", "PONG"; "?" for an unknown type.
[[nodiscard]] const char* type_name(std::uint8_t type);

// The verdict as recorded with a job's lease: section 10.

/// JSON of at most 16 KiB, without the details of the cause.
[[nodiscard]] std::string serialize_verdict(const VerdictMessage& verdict);

/// Empty for invalid text.
[[nodiscard]] std::optional<VerdictMessage> parse_verdict(const std::string& text);

}  // namespace ddrun::rendezvous
