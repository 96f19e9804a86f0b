#pragma once

#include <string>

#include "ddrun/base/unique_fd.hpp"
#include "results.hpp"

namespace ddrun::allreduce {

/// Opens the file before the run, so that a wrong path does not cost a measurement. `invalid_argument` if it cannot.
[[nodiscard]] Result<UniqueFd> open_report(const std::string& path);

/// Writes everything as one JSON object (docs/allreduce.md). Fails with `unavailable`, for example on a full disk.
[[nodiscard]] Result<void> write_report(int file, const std::string& path, const Setting& setting,
                                        const Summary& summary);

}  // namespace ddrun::allreduce
