#pragma once

#include <string>
#include <string_view>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::worker_env {

/// Finds the program and makes sure, as far as that can be told without starting it, that it can be executed:
/// so a mistake is one sentence before anything starts, and never a thousand workers that "exited with 127".
///
/// `name` with a '/' is a path, from `cwd` (the workers' directory); else `path`, the value of PATH, is searched.
/// Returns an absolute path; symbolic links in it stay (a virtual environment is known by its link).
/// Fails with `not_found` (exit code 127) or `not_executable` (126); the message is in the shell's words, with what
/// to do about it. Reads a few file system entries; blocks as long as the file system does.
[[nodiscard]] Result<std::string> find_program(std::string_view name, std::string_view path, const std::string& cwd);

/// For a script that Python runs: it has to be there and readable, no more. Returns its path from `cwd`.
[[nodiscard]] Result<std::string> find_script(std::string_view name, const std::string& cwd);

/// Whether a file that cannot be executed is a program for Python all the same: a directory with a __main__.py, a zip
/// archive, compiled Python, or a script without execute permission whose first line asks for Python. Any other text
/// is not: nothing tells it from a script of a shell. Named as for find_script().
[[nodiscard]] bool is_python_program(std::string_view name, const std::string& cwd);

struct PythonChoice {
  std::string path;  ///< absolute
  std::string why;   ///< for people: "PYTHON_EXEC", "python3 in PATH"
};

/// The Python that runs scripts and modules: `$PYTHON_EXEC`, else that of the virtual environment that ddrun was
/// started from (`started_as` is in its bin, see start_path()), else that of the active one:
/// `$CONDA_PREFIX/bin/python` where that bin is the first in PATH, or `$VIRTUAL_ENV/bin/python`; else python3 from
/// PATH. What the user set but is not there is an error, never skipped: another Python would be a surprise. Fails like
/// find_program().
[[nodiscard]] Result<PythonChoice> choose_python(const Environment& environment, const std::string& cwd,
                                                 std::string_view started_as = {});

/// The absolute path that stands behind a program's argv[0]: from the working directory, or where it has no slash from
/// this process's PATH. Links are not resolved: one in ~/.local/bin does not stand for the environment of its target.
/// Empty if no program is there.
[[nodiscard]] std::string start_path(std::string_view argv0);

/// The MPI library that a program asks its dynamic loader for, such as "libmpi.so.40". Empty if it asks for none, or
/// is no 64-bit ELF file of this machine's byte order. `file` may hold anything: what is no good ELF asks for nothing.
/// Only the program itself is looked at, not the libraries it names. Reads a few hundred bytes; blocks as the file
/// system does.
[[nodiscard]] std::string linked_mpi(const std::string& file);

/// PATH where the environment has none.
inline constexpr std::string_view default_path = "/usr/local/bin:/usr/bin:/bin";

}  // namespace ddrun::worker_env
