#pragma once

#include <string>
#include <vector>

#include "results.hpp"

namespace ddrun::bench {

/// Everything as one JSON object, in UTF-8 (docs/allreduce.md).
[[nodiscard]] std::string json_of(const Report& report, const std::vector<Shortfall>& shortfalls);

/// A report that `-J` wrote, of this version or an older one. `invalid_argument` if it cannot be read or is something
/// else; the words begin with `option` and the path.
[[nodiscard]] Result<Report> read_report(const std::string& option, const std::string& path);

/// One line per measurement below a line of names (docs/allreduce.md), quoted as RFC 4180 says. What was not measured
/// has empty fields and its reason in the last one.
[[nodiscard]] std::string csv_of(const Report& report);

}  // namespace ddrun::bench
