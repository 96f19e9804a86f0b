#include "ddrun/worker_env/program_path.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "ddrun/base/text.hpp"
#include "program_format.hpp"

namespace ddrun::worker_env {

namespace {

std::string from_directory(std::string_view name, const std::string& cwd) {
  if (name.starts_with('/')) return std::string(name);
  if (name.starts_with("./")) name.remove_prefix(2);
  return concat(cwd, cwd.ends_with('/') ? "" : "/", name);
}

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

void add_names(const std::string& directory, std::string_view wanted, std::vector<std::string>& names) {
  DIR* dir = ::opendir(directory.c_str());
  if (dir == nullptr) return;
  constexpr int most = 10'000;  // in a directory of a million files a suggestion is not worth the wait
  for (int i = 0; i < most; ++i) {
    const dirent* entry = ::readdir(dir);
    if (entry == nullptr) break;
    if (entry->d_name[0] == '.' || entry->d_type == DT_DIR) continue;
    // Any two short names are near each other: there only a slip of the finger counts.
    if (wanted.size() < 5 && !one_slip_apart(wanted, entry->d_name)) continue;
    names.emplace_back(entry->d_name);
  }
  ::closedir(dir);
}

/// The name of a file in one of `directories` that `wanted` was most likely meant to be; empty if none is near.
std::string near_name(const std::vector<std::string>& directories, const std::string& wanted, bool programs_only) {
  std::vector<std::string> names;
  for (const std::string& directory : directories) add_names(directory, wanted, names);
  const auto usable = [&](const std::string& name) {
    return std::any_of(directories.begin(), directories.end(), [&](const std::string& directory) {
      struct stat info {};
      const std::string file = concat(directory, "/", name);
      return ::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
             (!programs_only || ::access(file.c_str(), X_OK) == 0);
    });
  };
  while (true) {
    std::string best = nearest(wanted, names);
    if (best.empty() || usable(best)) return best;
    std::erase(names, best);
  }
}

std::string did_you_mean(std::string_view name, const std::string& file, bool programs_only) {
  const std::size_t slash = file.rfind('/');
  const std::string near = near_name({file.substr(0, slash + 1)}, file.substr(slash + 1), programs_only);
  if (near.empty()) return {};
  const std::size_t own_slash = name.rfind('/');
  const std::string_view directory = name.substr(0, own_slash == std::string_view::npos ? 0 : own_slash + 1);
  return concat(" (did you mean ", directory, near, "?)");
}

tl::unexpected<Error> not_there(std::string_view name, const std::string& file, int err, bool programs_only) {
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
  return fail(Errc::not_found, concat(name, ": no such file", did_you_mean(name, file, programs_only)), cause);
}

/// `file` exists: may it be executed?
Result<std::string> checked(std::string_view name, std::string file, const struct stat& info, std::string_view path,
                            const std::string& cwd) {
  const auto cannot = [&](std::string_view why) { return fail(Errc::not_executable, concat(name, ": ", why)); };
  if (S_ISDIR(info.st_mode)) return cannot("is a directory");
  if (!S_ISREG(info.st_mode)) return cannot("is not a regular file");
  if (::faccessat(AT_FDCWD, file.c_str(), X_OK, AT_EACCESS) != 0) {
    struct statvfs mount {};
    if (::statvfs(file.c_str(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0) {
      return cannot("is on a file system that is mounted noexec; copy it to another one");
    }
    if ((info.st_mode & 0111) == 0) {
      std::string why = concat("not executable; try: chmod +x ", shell_quote(name));
      if (name.ends_with(".py")) why += ", or leave out --no-python";
      return cannot(why);
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
    if (::stat(file.c_str(), &info) != 0) return not_there(name, file, errno, true);
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

  std::string hint = near_name(directories, std::string(name), true);
  if (const std::string here = from_directory(name, cwd); ::stat(here.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    hint = concat("./", name);  // the commonest slip of all
  }
  if (!hint.empty()) hint = concat(" (did you mean ", hint, "?)");
  return fail(Errc::not_found, concat(name, ": not found in PATH", hint));
}

Result<std::string> find_script(std::string_view name, const std::string& cwd) {
  if (name.empty()) return fail(Errc::not_found, "the name of the script is empty");
  std::string file = from_directory(name, cwd);
  if (::access(file.c_str(), F_OK) != 0) return not_there(name, file, errno, false);
  if (::faccessat(AT_FDCWD, file.c_str(), R_OK, AT_EACCESS) != 0) {
    return fail_errno(Errc::not_executable, concat(name, ": cannot be read"), errno);
  }
  return file;
}

}  // namespace ddrun::worker_env
