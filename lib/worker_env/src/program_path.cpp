#include "ddrun/worker_env/program_path.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"
#include "program_format.hpp"
#include "program_hints.hpp"

namespace ddrun::worker_env {

namespace {

tl::unexpected<Error> not_there(std::string_view name, const std::string& file, int err, Sought what) {
  const std::error_code cause(err, std::generic_category());
  if (err == EACCES) {
    return fail(Errc::not_executable, concat(name, ": permission denied: a directory on the way may not be entered"),
                cause);
  }
  if (err != ENOENT) return fail_errno(Errc::not_found, std::string(name), err);
  char target[1024];
  if (const ssize_t size = ::readlink(file.c_str(), target, sizeof target); size > 0) {
    return fail(Errc::not_found,
                concat(name, ": a symbolic link to ", std::string_view(target, static_cast<std::size_t>(size)),
                       ", which does not exist"),
                cause);
  }
  return fail(Errc::not_found, concat(name, ": no such file", hint_for_path(name, file, what)), cause);
}

/// `file` exists: may it be executed?
Result<std::string> checked(std::string_view name, std::string file, const struct stat& info, std::string_view path,
                            const std::string& cwd) {
  const auto cannot = [&](std::string_view why) { return fail(Errc::not_executable, concat(name, ": ", why)); };
  if (S_ISDIR(info.st_mode)) return cannot("is a directory, and no __main__.py is in it");
  if (!S_ISREG(info.st_mode)) return cannot("is not a regular file");
  if (::faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) != 0) {
    struct statvfs mount {};
    if (::statvfs(file.c_str(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0) {
      return cannot("is on a file system that is mounted noexec; copy it to another one");
    }
    if (name.ends_with(".ipynb")) return cannot(notebook_hint(name));
    if ((info.st_mode & 0111) == 0) {
      if (name.ends_with(".py")) {
        return cannot(concat("not executable; try: chmod +x ", shell_quote(name), ", or leave out --no-python"));
      }
      return cannot(not_executable(name, file));
    }
    return cannot("permission denied: you may not execute it");
  }
  if (auto ok = check_program_format(name, file, path, cwd); !ok) return tl::unexpected(ok.error());
  return file;
}

}  // namespace

Result<std::string> find_program(std::string_view name, std::string_view path, const std::string& cwd) {
  if (name.empty()) return fail(Errc::not_found, "the name of the program is empty");
  struct stat info {};
  if (name.find('/') != std::string_view::npos) {
    std::string file = from_directory(name, cwd);
    if (::stat(file.c_str(), &info) != 0) return not_there(name, file, errno, Sought::program);
    return checked(name, std::move(file), info, path, cwd);
  }

  std::string unusable;  // found, but no program
  struct stat unusable_info {};
  const std::vector<std::string> directories = split(path, ':');
  for (const std::string& directory : directories) {
    // An empty entry has always meant the working directory.
    std::string file = from_directory(concat(directory, directory.empty() ? "" : "/", name), cwd);
    if (::stat(file.c_str(), &info) != 0) continue;
    if (S_ISREG(info.st_mode) && ::faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) == 0) {
      return checked(name, std::move(file), info, path, cwd);
    }
    if (unusable.empty() && S_ISREG(info.st_mode)) {
      unusable = std::move(file);
      unusable_info = info;
    }
  }
  if (!unusable.empty()) return checked(unusable, unusable, unusable_info, path, cwd);

  return fail(Errc::not_found, concat(name, ": not found in PATH", hint_for_name(name, directories, cwd)));
}

bool is_python_program(std::string_view name, const std::string& cwd) {
  const std::string file = from_directory(name, cwd);
  struct stat info {};
  if (name.empty() || ::stat(file.c_str(), &info) != 0) return false;
  if (S_ISDIR(info.st_mode)) return ::access(concat(file, "/__main__.py").c_str(), F_OK) == 0;
  if (!S_ISREG(info.st_mode)) return false;
  const FileFormat format = file_format(file);
  // One that may be executed names the Python that it wants: without it, another would be a surprise.
  return format == FileFormat::python_code || (format == FileFormat::python_script && (info.st_mode & 0111) == 0);
}

Result<std::string> find_script(std::string_view name, const std::string& cwd) {
  if (name.empty()) return fail(Errc::not_found, "the name of the script is empty");
  std::string file = from_directory(name, cwd);
  if (::access(file.c_str(), F_OK) != 0) return not_there(name, file, errno, Sought::python_script);
  if (::faccessat(AT_FDCWD, file.c_str(), R_OK, AT_EACCESS) != 0) {
    return fail_errno(Errc::not_executable, concat(name, ": cannot be read"), errno);
  }
  return file;
}

// ---- which Python

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
