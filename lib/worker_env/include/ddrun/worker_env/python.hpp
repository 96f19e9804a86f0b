#pragma once

#include <string>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::worker_env {

/// The Python that runs scripts and modules: `$PYTHON_EXEC`, else that of the active virtual environment
/// (`$VIRTUAL_ENV/bin/python`), else python3 from PATH. An absolute path.
/// What the user set but is not there is an error, never skipped: another Python would be a surprise.
/// Fails like find_program().
[[nodiscard]] Result<std::string> choose_python(const Environment& environment, const std::string& cwd);

}  // namespace ddrun::worker_env
