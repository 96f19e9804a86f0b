#pragma once

#include <string>

#include "report/report.hpp"

namespace ddrun::allreduce {

/// A report that `-J` wrote, of this version or an older one. `invalid_argument` if it cannot be read or is something
/// else; the words begin with `option` and the path.
[[nodiscard]] Result<Report> read_report(const std::string& option, const std::string& path);

}  // namespace ddrun::allreduce
