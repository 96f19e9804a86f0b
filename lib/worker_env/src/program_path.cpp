#include "ddrun/worker_env/program_path.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "program_format.hpp"

namespace ddrun::worker_env {

namespace {

/// `name` relative to `cwd` as a path; absolute names are unchanged.
std::string from_directory(std::string_view name, const std::string& cwd) {
  if (name.starts_with('/')) return std::string(name);
  if (name.starts_with("./")) name.remove_prefix(2);
  return concat(cwd, cwd.ends_with('/') ? "" : "/", name);
}

// ---- suggestions for a program that is missing or cannot be executed; only existing files are suggested

enum class TargetKind { program, python_script };

void add_names(const std::string& directory, std::string_view wanted, std::string_view ending,
               std::vector<std::string>& names) {
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return;
  constexpr int max_scanned = 10'000;  // bounds the time in huge directories
  for (int i = 0; i < max_scanned; ++i) {
    const dirent* entry = ::readdir(dir);
    if (entry == nullptr) break;
    if (entry->d_name[0] == '.' || entry->d_type == DT_DIR) continue;
    if (!std::string_view(entry->d_name).ends_with(ending)) continue;
    // Any two short names are near each other: only one typo is accepted.
    if (wanted.size() < 5 && edit_distance(wanted, entry->d_name) > 1) continue;
    names.emplace_back(entry->d_name);
  }
  ::closedir(dir);
}

bool is_program(const std::string& file) {
  struct stat info {};
  return ::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(file.c_str(), X_OK) == 0;
}

bool is_file(const std::string& file) {
  struct stat info {};
  return ::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

/// A script's first 16 KiB; empty if it cannot be read.
std::string script_head(const std::string& file, std::size_t bytes = 16UL * 1024) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string head(bytes, '\0');
  const ssize_t size = fd ? ::pread(fd.get(), head.data(), head.size(), 0) : -1;
  head.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return head;
}

/// The name nearest to `wanted` for which `is_usable` holds in one of `directories`; else empty.
template <class Usable>
std::string near_name(const std::vector<std::string>& directories, const std::string& wanted,
                      std::vector<std::string> names, Usable is_usable) {
  const auto usable = [&](const std::string& name) {
    return std::any_of(directories.begin(), directories.end(),
                       [&](const std::string& directory) { return is_usable(concat(directory, "/", name)); });
  };
  while (true) {
    std::string best = nearest(wanted, names);
    if (best.empty() || usable(best)) return best;
    std::erase(names, best);
  }
}

/// PATH has thousands of names, so only one typo is accepted, and not in the first letter.
std::string near_program(const std::vector<std::string>& directories, const std::string& wanted) {
  if (wanted.size() <= 3) return {};
  std::vector<std::string> names;
  for (const std::string& directory : directories) add_names(directory, wanted, "", names);
  std::erase_if(names, [&](const std::string& name) {
    return name.front() != wanted.front() || (wanted.size() < 8 && edit_distance(wanted, name) > 1);
  });
  return near_name(directories, wanted, std::move(names), is_program);
}

bool is_listed(std::string_view words, std::string_view word) {
  const auto all = split(words, ' ');
  return std::find(all.begin(), all.end(), word) != all.end();
}

/// "NAME=..." with a valid variable name.
bool is_assignment(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
  return name.size() < word.size() && !name.empty() && letters.find(name.front()) != std::string_view::npos &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return letters.find(c) != std::string_view::npos || (c >= '0' && c <= '9'); });
}

std::string env_option_hint(std::string_view name) {
  return concat("; to set a variable for the workers write --env ", shell_quote(name), " before the program");
}

std::string quoted_command_hint(std::string_view name) {
  return concat("; it is one word with blanks in it: leave out the quotes, or write: bash -c ", shell_quote(name));
}

/// The message for a regular file without execute permission.
std::string not_executable(std::string_view name, const std::string& file) {
  if (file_format(file) != FileFormat::text) return concat("not executable; try: chmod +x ", shell_quote(name));
  return concat("not executable, and has no '#!' line; for a Python program try: ddrun --run-path ", shell_quote(name),
                ", for another script make '#!/bin/sh', or what runs it, its first line, and chmod +x");
}

/// The message for a Jupyter notebook.
std::string notebook_hint(std::string_view name) {
  return concat("a notebook is no program; make a script of it: jupyter nbconvert --to script ", shell_quote(name));
}

/// A hint if the working directory has a file of that name or a similar one.
std::string hint_for_file_in_cwd(std::string_view name, const std::string& cwd) {
  const std::string path_in_cwd = from_directory(name, cwd);
  if (is_program(path_in_cwd)) return concat(" (did you mean ./", name, "?)");  // the most common mistake
  if (is_file(path_in_cwd)) {
    if (name.ends_with(".ipynb")) return concat("; ", notebook_hint(name));
    if (name.ends_with(".PY") || name.ends_with(".Py") || name.ends_with(".pyw")) {
      return concat("; as it does not end in .py, write: --run-path ", shell_quote(name));
    }
    return concat("; ./", name, " is ", not_executable(concat("./", name), path_in_cwd));
  }
  if (is_file(path_in_cwd + ".py")) return concat(" (did you mean ", name, ".py?)");
  if (is_program(path_in_cwd + ".sh")) return concat(" (did you mean ./", name, ".sh?)");
  return {};
}

constexpr std::string_view shell_keywords =
    ". : alias bg bind break builtin case cd command continue declare dirs disown do done elif else enable esac eval "
    "exec exit export fc fg fi for function getopts hash history if jobs let local logout mapfile popd pushd read "
    "readonly return select set shift shopt source suspend then time times trap type typeset ulimit umask unalias "
    "unset "
    "until wait while";
/// Subcommands of other launchers and tools.
constexpr std::string_view launcher_subcommands = "help launch list logs ps run start status stop submit";
/// ddrun's first words, but for those that are programs too.
constexpr std::string_view own_words = "completion config rendezvous secret stacks store version";

// Suffixes of an error message, " (did you mean ...?)" or "; ..."; empty without a suggestion.

/// For a name with a '/'; `file` is its path.
std::string hint_for_path(std::string_view name, const std::string& file, TargetKind what) {
  if (is_assignment(name)) return env_option_hint(name);
  const std::size_t slash = file.rfind('/');
  const std::string directory = file.substr(0, slash + 1);
  const std::string wanted = file.substr(slash + 1);
  std::vector<std::string> names;
  add_names(directory, wanted, what == TargetKind::python_script ? ".py" : "", names);
  const std::string near =
      near_name({directory}, wanted, std::move(names), what == TargetKind::python_script ? is_file : is_program);
  if (!near.empty()) {
    const std::size_t own_slash = name.rfind('/');
    return concat(" (did you mean ", name.substr(0, own_slash == std::string_view::npos ? 0 : own_slash + 1), near,
                  "?)");
  }
  if (const std::size_t blank = file.find(' '); blank != std::string::npos && is_file(file.substr(0, blank))) {
    return quoted_command_hint(name);
  }
  if (what == TargetKind::program && is_file(file + ".py")) return concat(" (did you mean ", name, ".py?)");
  return {};
}

/// For a name that was searched in `directories`, those of PATH. A file in `cwd` is suggested first.
std::string hint_for_name(std::string_view name, const std::vector<std::string>& directories, const std::string& cwd) {
  if (is_assignment(name)) return env_option_hint(name);
  if (name.starts_with('-')) return "; behind -- stands the program, and options of ddrun before it";
  if (std::string path_in_cwd = hint_for_file_in_cwd(name, cwd); !path_in_cwd.empty()) return path_in_cwd;
  if (name.find_first_of(" \t\n") != std::string_view::npos) return quoted_command_hint(name);
  if (is_listed(shell_keywords, name)) {
    return concat("; it is a word of the shell, not a program; write: bash -c '", name, " ...'");
  }
  if (is_listed(launcher_subcommands, name)) {
    return concat("; ddrun has no word ", name, ": its options and the program follow at once, see 'ddrun --help'");
  }
  struct stat info {};
  if (::stat(from_directory(name, cwd).c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return concat("; ./", name, " is a directory, and no __main__.py is in it");
  }
  if (const std::string word = nearest(name, split(own_words, ' ')); !word.empty()) {
    return concat(" (did you mean 'ddrun ", word, "'? ddrun's own words come first)");
  }
  const std::string near = near_program(directories, std::string(name));
  return near.empty() ? std::string() : concat(" (did you mean ", near, "?)");
}

// ---- search

tl::unexpected<Error> missing_file_error(std::string_view name, const std::string& file, int err, TargetKind what) {
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

/// Checks that the existing `file` can be executed.
Result<std::string> checked(std::string_view name, std::string file, const struct stat& info, std::string_view path,
                            const std::string& cwd) {
  const auto cannot = [&](std::string_view why) { return fail(Errc::not_executable, concat(name, ": ", why)); };
  if (S_ISDIR(info.st_mode)) return cannot("is a directory, and no __main__.py is in it");
  if (!S_ISREG(info.st_mode)) return cannot("is not a regular file");
  if (!is_accessible(file, X_OK)) {
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
  TRY(check_program_format(name, file, path, cwd));
  return file;
}

}  // namespace

Result<std::string> find_program(std::string_view name, std::string_view path, const std::string& cwd) {
  if (name.empty()) return fail(Errc::not_found, "the name of the program is empty");
  struct stat info {};
  if (name.find('/') != std::string_view::npos) {
    std::string file = from_directory(name, cwd);
    if (::stat(file.c_str(), &info) != 0) return missing_file_error(name, file, errno, TargetKind::program);
    return checked(name, std::move(file), info, path, cwd);
  }

  std::string unusable;  // found, but not executable
  struct stat unusable_info {};
  const std::vector<std::string> directories = split(path, ':');
  for (const std::string& directory : directories) {
    // An empty entry means the working directory.
    std::string file = from_directory(concat(directory, directory.empty() ? "" : "/", name), cwd);
    if (::stat(file.c_str(), &info) != 0) continue;
    if (S_ISREG(info.st_mode) && is_accessible(file, X_OK)) {
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
  // An executable script selects its Python by the '#!' line, so it is not run by another one.
  return format == FileFormat::python_code || (format == FileFormat::python_script && (info.st_mode & 0111) == 0);
}

Result<std::string> find_script(std::string_view name, const std::string& cwd) {
  if (name.empty()) return fail(Errc::not_found, "the name of the script is empty");
  std::string file = from_directory(name, cwd);
  if (::access(file.c_str(), F_OK) != 0) return missing_file_error(name, file, errno, TargetKind::python_script);
  if (!is_accessible(file, R_OK)) {
    return fail_errno(Errc::not_executable, concat(name, ": cannot be read"), errno);
  }
  return file;
}

bool imports_mpi4py(std::string_view name, const std::string& cwd) {
  std::string head = script_head(from_directory(name, cwd));
  // Strings over several lines are cut out.
  for (std::size_t at = 0; (at = std::min(head.find("\"\"\"", at), head.find("'''", at))) != std::string::npos;) {
    const std::size_t end = head.find(head.substr(at, 3), at + 3);
    head.erase(at, end == std::string::npos ? end : end - at + 3);
  }
  for (char& c : head) c = c == ',' || c == '\t' || c == '\r' ? ' ' : c;
  for (const std::string& line : split(head, '\n')) {
    std::vector<std::string> words = split(line.substr(0, line.find_first_of("#;")), ' ');
    std::erase(words, "");
    if (words.size() < 2 || (words[0] != "import" && words[0] != "from")) continue;
    if (words[0] == "from") words.resize(2);
    for (std::string& module : words) module.erase(std::min(module.find('.'), module.size()));
    if (std::find(words.begin() + 1, words.end(), "mpi4py") != words.end()) return true;
  }
  return false;
}

std::string_view meeting_call(std::string_view name, const std::string& cwd) {
  const std::string script = script_head(from_directory(name, cwd), 128UL * 1024);
  const std::string_view text = script;
  const auto has = [&](std::string_view part) { return text.find(part) != text.npos; };
  if (has("tcp://") || has("file://") || has("MASTER_PORT")) return {};
  for (const std::string_view call : {"Accelerator(", "init_process_group(", "Trainer("}) {
    if (has(call) && !text.substr(0, text.find(call)).ends_with("class ")) return call;
  }
  return {};
}

std::string script_runner(std::string_view name, const std::string& cwd) {
  const std::string file = from_directory(name, cwd);
  const std::string head = script_head(file);
  if (concat("\n", head).find("\n# /// script") != std::string::npos) return "uv run";
  const bool other = head.starts_with("#!") && head.substr(0, head.find('\n')).find("python") == std::string::npos;
  return other && is_program(file) ? "--no-python" : "";
}

// ---- choice of Python

namespace {

constexpr std::string_view instead = ", or set PYTHON_EXEC";

/// The "python" or else "python3" in a virtual environment's bin, also if not executable; empty if there is neither.
std::string python_in(const std::string& bin) {
  struct stat info {};
  for (const char* name : {"/python", "/python3"}) {
    if (::lstat((bin + name).c_str(), &info) == 0) return bin + name;
  }
  return {};
}

Result<PythonChoice> python_at(const std::string& file, std::string_view path, const std::string& cwd,
                               const std::string& where, std::string_view what_to_do) {
  auto python = find_program(file, path, cwd);
  if (python) return PythonChoice{std::move(*python), where};
  return fail(python.error().code,
              concat(where, " has no usable Python: ", python.error().message, "; ", what_to_do, instead));
}

Result<PythonChoice> python_of_variable(std::string_view name, std::string_view path, const std::string& cwd) {
  auto python = find_program(name, path, cwd);
  if (python) return PythonChoice{std::move(*python), "PYTHON_EXEC"};
  if (name.find(' ') == std::string_view::npos) {
    return fail(python.error().code, concat("PYTHON_EXEC: ", python.error().message));
  }
  return fail(python.error().code,
              concat("PYTHON_EXEC: ", name, ": not found; it is the path of a program, without arguments"));
}

}  // namespace

std::string start_path(std::string_view argv0) {
  if (argv0.empty()) return {};
  std::error_code failed;
  const std::string path_in_cwd = std::filesystem::current_path(failed).string();
  std::vector<std::string> directories{""};
  if (argv0.find('/') == std::string_view::npos) directories = split(variable("PATH").value_or(default_path), ':');
  for (const std::string& directory : directories) {
    const std::string file = from_directory(concat(directory, directory.empty() ? "" : "/", argv0), path_in_cwd);
    if (is_program(file)) return std::filesystem::path(file).lexically_normal().string();
  }
  return {};
}

Result<PythonChoice> choose_python(const Environment& environment, const std::string& cwd,
                                   std::string_view started_as) {
  const std::string_view path = environment.find("PATH").value_or(default_path);
  if (const auto chosen = environment.get("PYTHON_EXEC")) return python_of_variable(*chosen, path, cwd);

  const std::filesystem::path own_bin = std::filesystem::path(start_path(started_as)).parent_path();
  if (own_bin.has_parent_path() && is_file(own_bin.parent_path() / "pyvenv.cfg")) {
    const std::string python = python_in(own_bin);
    if (!python.empty()) {
      return python_at(python, path, cwd, "the virtual environment that ddrun was started from", "make it anew");
    }
  }
  if (const auto conda = environment.get("CONDA_PREFIX")) {
    const std::string bin = concat(*conda, "/bin");
    if (split(path, ':').front() == bin && is_program(bin + "/python")) {
      return PythonChoice{bin + "/python", "the active conda environment"};
    }
  }
  if (const auto venv = environment.get("VIRTUAL_ENV")) {
    return python_at(concat(*venv, "/bin/python"), path, cwd, "the active virtual environment", "deactivate it");
  }
  auto python = find_program("python3", path, cwd);
  if (python) return PythonChoice{std::move(*python), "python3 in PATH"};
  return fail(python.error().code,
              concat(python.error().message, "; install Python, or set PYTHON_EXEC to the interpreter to use"));
}

}  // namespace ddrun::worker_env
