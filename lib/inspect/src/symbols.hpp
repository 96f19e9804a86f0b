#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ddrun/inspect/stacks.hpp"

namespace ddrun::inspect {

/// Sets the names of these frames' functions from the symbol tables of their files (.symtab, .dynsym), for all
/// processes together: one pass over each file. A file is found by its path, or below the root of the process that has
/// it mapped, and must be the one that is mapped. Without a symbol a name stays empty. Blocks on files; neither keeps
/// nor maps them.
void name_functions(const std::vector<NativeFrame*>& frames);

/// A symbol's name for people: demangled, without parameters, result type and version; long template arguments are left
/// out.
[[nodiscard]] std::string function_name(const std::string& symbol);

}  // namespace ddrun::inspect
