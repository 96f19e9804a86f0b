#pragma once

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::agent {

/// The exit code for the end of a job: base/exit_status.hpp has the table.
[[nodiscard]] int exit_code(const JobResult& result);

/// The exit code for a failure before any worker was started.
[[nodiscard]] int exit_code(Errc code);

}  // namespace ddrun::agent
