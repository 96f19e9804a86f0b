#include "gpu/nccl_search.hpp"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "ddrun/base/text.hpp"

namespace ddrun::collectives::nccl {

std::vector<std::string> python_prefixes(const Environment& environment, const std::string& program) {
  namespace fs = std::filesystem;
  std::error_code failed;
  std::vector<std::string> prefixes;
  const auto add = [&](const fs::path& prefix) {
    std::string text = prefix.lexically_normal().string();
    if (!text.empty() && std::find(prefixes.begin(), prefixes.end(), text) == prefixes.end()) prefixes.push_back(text);
  };
  const auto prefix_of = [](const fs::path& file) { return file.parent_path().parent_path(); };
  if (const auto venv = environment.get("VIRTUAL_ENV")) add(*venv);
  add(prefix_of(fs::absolute(program, failed)));
  for (const std::string& directory : split(environment.find("PATH").value_or(""), ':')) {
    const fs::path python = fs::path(directory) / "python3";
    if (::access(python.c_str(), X_OK) != 0) continue;
    add(prefix_of(python));
    if (fs::exists(prefix_of(python) / "pyvenv.cfg", failed)) break;
    add(prefix_of(fs::canonical(python, failed)));
    if (const auto home = environment.get("HOME")) add(fs::path(*home) / ".local");
    add("/usr/local");
    break;
  }
  return prefixes;
}

Result<SharedLibrary> open_nccl(const std::string& name, const std::vector<std::string>& prefixes) {
  auto library = SharedLibrary::open(name);
  if (library || !can_open_libraries()) return library;
  std::string errors = library.error().message;
  for (const std::string& prefix : prefixes) {
    glob_t found{};
    (void)::glob((prefix + "/lib*/python3*/*-packages/nvidia/nccl/lib/libnccl.so.2").c_str(), 0, nullptr, &found);
    for (std::size_t i = 0; i < found.gl_pathc && !library; ++i) {
      library = SharedLibrary::open(found.gl_pathv[i]);
      if (!library) errors += concat("; ", library.error().message);
    }
    ::globfree(&found);
    if (library) return library;
  }
  return fail(Errc::unsupported, concat(errors, "; no nvidia/nccl/lib in the Python packages of ", join(prefixes, ", "),
                                        " (DDRUN_NCCL_LIBRARY can name the file)"));
}

}  // namespace ddrun::collectives::nccl
