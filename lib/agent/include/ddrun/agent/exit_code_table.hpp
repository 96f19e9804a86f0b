#pragma once

#include "ddrun/agent/job_result.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::agent {

/// ddrun's exit codes. docs/exit-codes.md is this table for users.
///
///     0         all workers ended with a success code
///     1 … 255   the code of the worker that failed first, as it is
///     128 + N   that worker was ended by signal N; or ddrun was told to stop by signal N
///     2         the command line, the configuration or an environment variable is wrong
///     124       --timeout
///     125       ddrun could not do its work (out of descriptors, disk full, port in use …); or all workers succeeded,
///               and not all of their output could be written
///     126       the program is there but cannot be executed
///     127       the program was not found
namespace exit_codes {
inline constexpr int success = 0;
inline constexpr int usage = 2;
inline constexpr int timed_out = 124;
inline constexpr int launcher_failed = 125;
inline constexpr int not_executable = 126;
inline constexpr int not_found = 127;
inline constexpr int signal_base = 128;
}  // namespace exit_codes

/// The exit code for the end of a job.
[[nodiscard]] int exit_code(const JobResult& result);

/// The exit code for a failure before any worker was started.
[[nodiscard]] int exit_code(Errc code);

}  // namespace ddrun::agent
