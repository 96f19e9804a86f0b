#include "program_hints.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ddrun/base/text.hpp"
#include "program_format.hpp"

namespace ddrun::worker_env {

namespace {

/// The same but for one letter more, less, other, or two letters swapped.
bool one_slip_apart(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  if (b.size() - a.size() > 1) return false;
  std::size_t at = 0;
  while (at < a.size() && a[at] == b[at]) ++at;
  const auto tail_from = [](std::string_view text, std::size_t from) {
    return text.substr(std::min(from, text.size()));
  };
  if (a.size() < b.size()) return a.substr(at) == b.substr(at + 1);
  if (tail_from(a, at + 1) == tail_from(b, at + 1)) return true;
  return at + 1 < a.size() && a[at] == b[at + 1] && a[at + 1] == b[at] && a.substr(at + 2) == b.substr(at + 2);
}

void add_names(const std::string& directory, std::string_view wanted, std::string_view ending,
               std::vector<std::string>& names) {
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return;
  constexpr int most = 10'000;  // in a directory of a million files a suggestion is not worth the wait
  for (int i = 0; i < most; ++i) {
    const dirent* entry = ::readdir(dir);
    if (entry == nullptr) break;
    if (entry->d_name[0] == '.' || entry->d_type == DT_DIR) continue;
    if (!std::string_view(entry->d_name).ends_with(ending)) continue;
    // Any two short names are near each other: there only a slip of the finger counts.
    if (wanted.size() < 5 && !one_slip_apart(wanted, entry->d_name)) continue;
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

/// The name in one of `directories` that `wanted` was most likely meant to be, of those that `is_usable`; else empty.
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

/// PATH holds thousands of names, so that something is near to any: only a slip of the finger counts, and not in the
/// first letter.
std::string near_program(const std::vector<std::string>& directories, const std::string& wanted) {
  if (wanted.size() <= 3) return {};
  std::vector<std::string> names;
  for (const std::string& directory : directories) add_names(directory, wanted, "", names);
  std::erase_if(names, [&](const std::string& name) {
    return name.front() != wanted.front() || (wanted.size() < 8 && !one_slip_apart(wanted, name));
  });
  return near_name(directories, wanted, std::move(names), is_program);
}

bool is_listed(std::string_view words, std::string_view word) {
  const auto all = split(words, ' ');
  return std::find(all.begin(), all.end(), word) != all.end();
}

/// "NAME=..." with a name that a shell would take for a variable's.
bool is_assignment(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
  return name.size() < word.size() && !name.empty() && letters.find(name.front()) != std::string_view::npos &&
         std::all_of(name.begin(), name.end(),
                     [&](char c) { return letters.find(c) != std::string_view::npos || (c >= '0' && c <= '9'); });
}

std::string assignment_hint(std::string_view name) {
  return concat("; to set a variable for the workers write --env ", shell_quote(name), " before the program");
}

std::string one_word_hint(std::string_view name) {
  return concat("; it is one word with blanks in it: leave out the quotes, or write: bash -c ", shell_quote(name));
}

/// Something of that name, or nearly, lies in the working directory.
std::string hint_for_file_here(std::string_view name, const std::string& cwd) {
  const std::string here = from_directory(name, cwd);
  if (is_program(here)) return concat(" (did you mean ./", name, "?)");  // the commonest slip of all
  if (is_file(here)) {
    if (name.ends_with(".ipynb")) return concat("; ", notebook_hint(name));
    if (name.ends_with(".PY") || name.ends_with(".Py") || name.ends_with(".pyw")) {
      return concat("; as it does not end in .py, write: --run-path ", shell_quote(name));
    }
    return concat("; ./", name, " is ", not_executable(concat("./", name), here));
  }
  if (is_file(here + ".py")) return concat(" (did you mean ", name, ".py?)");
  if (is_program(here + ".sh")) return concat(" (did you mean ./", name, ".sh?)");
  return {};
}

constexpr std::string_view shell_words =
    ". : alias bg bind break builtin case cd command continue declare dirs disown do done elif else enable esac eval "
    "exec exit export fc fg fi for function getopts hash history if jobs let local logout mapfile popd pushd read "
    "readonly return select set shift shopt source suspend then time times trap type typeset ulimit umask unalias "
    "unset "
    "until wait while";
/// First words of other launchers and tools.
constexpr std::string_view launcher_words = "help launch list logs ps run start status stop submit";

}  // namespace

std::string not_executable(std::string_view name, const std::string& file) {
  if (file_format(file) != FileFormat::text) return concat("not executable; try: chmod +x ", shell_quote(name));
  return concat("not executable, and has no '#!' line; for a Python program try: ddrun --run-path ", shell_quote(name),
                ", for another script make '#!/bin/sh', or what runs it, its first line, and chmod +x");
}

std::string notebook_hint(std::string_view name) {
  return concat("a notebook is no program; make a script of it: jupyter nbconvert --to script ", shell_quote(name));
}

std::string hint_for_path(std::string_view name, const std::string& file, Sought what) {
  if (is_assignment(name)) return assignment_hint(name);
  const std::size_t slash = file.rfind('/');
  const std::string directory = file.substr(0, slash + 1);
  const std::string wanted = file.substr(slash + 1);
  std::vector<std::string> names;
  add_names(directory, wanted, what == Sought::python_script ? ".py" : "", names);
  const std::string near =
      near_name({directory}, wanted, std::move(names), what == Sought::python_script ? is_file : is_program);
  if (!near.empty()) {
    const std::size_t own_slash = name.rfind('/');
    return concat(" (did you mean ", name.substr(0, own_slash == std::string_view::npos ? 0 : own_slash + 1), near,
                  "?)");
  }
  if (const std::size_t blank = file.find(' '); blank != std::string::npos && is_file(file.substr(0, blank))) {
    return one_word_hint(name);
  }
  if (what == Sought::program && is_file(file + ".py")) return concat(" (did you mean ", name, ".py?)");
  return {};
}

std::string hint_for_name(std::string_view name, const std::vector<std::string>& directories, const std::string& cwd) {
  if (is_assignment(name)) return assignment_hint(name);
  if (name.starts_with('-')) return "; behind -- stands the program, and options of ddrun before it";
  if (std::string here = hint_for_file_here(name, cwd); !here.empty()) return here;
  if (name.find_first_of(" \t\n") != std::string_view::npos) return one_word_hint(name);
  if (is_listed(shell_words, name)) {
    return concat("; it is a word of the shell, not a program; write: bash -c '", name, " ...'");
  }
  if (is_listed(launcher_words, name)) {
    return concat("; ddrun has no word ", name, ": its options and the program follow at once, see 'ddrun --help'");
  }
  struct stat info {};
  if (::stat(from_directory(name, cwd).c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return concat("; ./", name, " is a directory, and no __main__.py is in it");
  }
  const std::string near = near_program(directories, std::string(name));
  return near.empty() ? std::string() : concat(" (did you mean ", near, "?)");
}

}  // namespace ddrun::worker_env
