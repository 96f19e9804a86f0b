#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/inspect/stack_page.hpp"

namespace ddrun::inspect {

/// Names that were looked up, by file and address; an empty one: there is no symbol.
using NameCache = std::map<std::tuple<dev_t, ino_t, std::uint64_t>, std::string>;

/// Looks up the names of these frames' functions in the symbol tables of their files (.symtab, .dynsym), for all
/// processes together: one pass over each file. A file is found by its path, or below the root of the process that has
/// it mapped, and must be the one that is mapped. Blocks on files; neither keeps nor maps them. Beyond `deadline` names
/// are missing. `cache` saves the next look-up, of a table with half a million symbols for PyTorch; it is cleared when
/// it holds 10,000 names.
void look_up_names(const std::vector<NativeFrame>& frames, NameCache& cache, Deadline deadline);

/// Sets the function that was looked up; without one it stays empty.
void set_name(NativeFrame& frame, const NameCache& cache);

/// A symbol's name for people: demangled, without parameters, result type and version; long template arguments are left
/// out.
[[nodiscard]] std::string function_name(const std::string& symbol);

}  // namespace ddrun::inspect
