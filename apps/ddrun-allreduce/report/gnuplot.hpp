#pragma once

#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::allreduce {

/// `invalid_argument` if there is no gnuplot in PATH: which package has it.
[[nodiscard]] Result<void> check_gnuplot();

/// Blocks while gnuplot runs the script, and returns what it wrote to its standard output. No file is made, and
/// no settings of the user's are read. `unavailable` if it fails, with its own words; `timeout` ends it.
[[nodiscard]] Result<std::string> run_gnuplot(const std::string& script, Deadline deadline);

}  // namespace ddrun::allreduce
