#pragma once

#include <string>

#include "report/report.hpp"

namespace ddrun::allreduce {

/// One line per measurement below a line of names (docs/allreduce.md), quoted as RFC 4180 says. What was not measured
/// has empty fields and its reason in the last one.
[[nodiscard]] std::string csv_of(const Report& report);

}  // namespace ddrun::allreduce
