#pragma once

#include <string>
#include <vector>

#include "report/report.hpp"

namespace ddrun::allreduce {

/// Everything as one JSON object, in UTF-8 (docs/allreduce.md).
[[nodiscard]] std::string json_of(const Report& report, const std::vector<Shortfall>& shortfalls);

}  // namespace ddrun::allreduce
