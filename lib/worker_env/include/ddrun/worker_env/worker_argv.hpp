#pragma once

#include <string>
#include <vector>

#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::worker_env {

/// What a worker gets as argv: `python -u [-m] name args…`, or `name args…` for an executable, as the user wrote it;
/// for
/// --run-path `python -u -c CODE name args…`, where CODE runs the script and waits for the other workers at its end.
/// `python` is unused for an executable. In the arguments, and only there, `${rank}` and `${local_rank}` are replaced;
/// everything else stays byte for byte (`$$`, `${x}`, `$rank`).
[[nodiscard]] std::vector<std::string> worker_argv(const ProgramSpec& program, int rank, int local_rank,
                                                   const std::string& python);

/// False: all workers have the same argv, so one is enough for all of them.
[[nodiscard]] bool argv_depends_on_rank(const ProgramSpec& program);

}  // namespace ddrun::worker_env
