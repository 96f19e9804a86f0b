#pragma once

#include <string>

namespace ddrun::remote {

/// What tells this build from every other: the version, and the note by which the linker has named the program (its
/// commit where it has none). Letters, digits and ".+-" only.
[[nodiscard]] std::string build_id(const char* version, const char* commit);

}  // namespace ddrun::remote
