#pragma once

#include <optional>
#include <string_view>

#include "wire.hpp"

// The two ways PyTorch's clients have spoken: since 2.1 ("modern"), with a greeting, and before ("old"), without one
// and with other numbers for the requests.
namespace ddrun::store {

enum class Dialect : std::uint8_t { modern, old };

/// Which dialect a connection speaks, from its first bytes; nothing while they fit the beginning of the greeting.
///
/// No request of the old dialect begins like the whole greeting: as a SET it would have a key of over a gigabyte.
[[nodiscard]] std::optional<Dialect> tell_dialect(std::string_view first_bytes);

/// What the first byte of a request means in the dialect.
[[nodiscard]] inline std::optional<wire::Opcode> opcode_of(Dialect dialect, char byte) {
  using wire::Opcode;
  const auto number = static_cast<unsigned char>(byte);
  if (dialect == Dialect::modern) {
    if (number > static_cast<unsigned char>(Opcode::barrier)) return std::nullopt;
    return static_cast<Opcode>(number);
  }
  constexpr Opcode meaning[] = {Opcode::set,  Opcode::compare_set, Opcode::get,       Opcode::add,       Opcode::check,
                                Opcode::wait, Opcode::num_keys,    Opcode::watch_key, Opcode::delete_key};
  if (number >= std::size(meaning)) return std::nullopt;
  return meaning[number];
}

}  // namespace ddrun::store
