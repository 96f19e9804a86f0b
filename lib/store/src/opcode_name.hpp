#pragma once

#include <string_view>

#include "wire.hpp"

namespace ddrun::store {

/// As docs/store-protocol.md writes it: "SET", "QUEUE_PUSH".
[[nodiscard]] std::string_view opcode_name(wire::Opcode op);

}  // namespace ddrun::store
