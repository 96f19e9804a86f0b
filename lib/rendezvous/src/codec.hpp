#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/base/result.hpp"
#include "ddrun/rendezvous/messages.hpp"

// Messages as bytes: lib/rendezvous/PROTOCOL.md, sections 3 and 4.
namespace ddrun::rendezvous {

inline constexpr std::uint8_t join_type = 1;
inline constexpr std::uint8_t pong_type = 8;
inline constexpr std::uint8_t resume_type = 9;
inline constexpr std::uint8_t ping_type = 73;
inline constexpr std::uint8_t resumed_type = 75;

/// Whether a message of this type is one of those that both sides count, so that none is missing after a connection was
/// made again: all but those that are about the connection itself.
[[nodiscard]] bool is_sequenced(std::uint8_t type);

/// The message as it travels; `payload` is replaced. Returns its type.
std::uint8_t encode(const FromAgent& message, std::string& payload);
std::uint8_t encode(const FromCoordinator& message, std::string& payload);

/// Empties texts of a message that may be empty, one after the other, until its payload has at most `max_size` bytes:
/// what is known about workers and causes, sentences for people. False if it has more even so.
bool shorten(FromAgent& message, std::size_t max_size);
bool shorten(FromCoordinator& message, std::size_t max_size);

/// Bytes behind the last field are passed over. Fails with `protocol` for an unknown type and for a payload that is cut
/// short, counts more than it has or holds a value that means nothing. Allocates no more than the payload's size.
[[nodiscard]] Result<FromAgent> decode_from_agent(std::uint8_t type, std::string_view payload);
[[nodiscard]] Result<FromCoordinator> decode_from_coordinator(std::uint8_t type, std::string_view payload);

/// "JOIN", "PONG"; "?" for a type that there is not.
[[nodiscard]] const char* type_name(std::uint8_t type);

}  // namespace ddrun::rendezvous
