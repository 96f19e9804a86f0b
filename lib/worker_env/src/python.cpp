#include "ddrun/worker_env/python.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/worker_env/program_path.hpp"

namespace ddrun::worker_env {

Result<std::string> choose_python(const Environment& environment, const std::string& cwd) {
  const std::string_view path = environment.find("PATH").value_or(default_path);
  if (const auto chosen = environment.find("PYTHON_EXEC"); chosen && !chosen->empty()) {
    auto python = find_program(*chosen, path, cwd);
    if (!python) return fail(python.error().code, concat("PYTHON_EXEC: ", python.error().message));
    return python;
  }
  if (const auto venv = environment.find("VIRTUAL_ENV"); venv && !venv->empty()) {
    auto python = find_program(concat(*venv, "/bin/python"), path, cwd);
    if (!python) {
      return fail(python.error().code, concat("the active virtual environment has no usable Python: ",
                                              python.error().message, "; deactivate it, or set PYTHON_EXEC"));
    }
    return python;
  }
  auto python = find_program("python3", path, cwd);
  if (!python) {
    return fail(python.error().code,
                concat(python.error().message, "; install Python, or set PYTHON_EXEC to the interpreter to use"));
  }
  return python;
}

}  // namespace ddrun::worker_env
