#include "gpu/nccl_library.hpp"

#include <glob.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
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

namespace {

/// Returns the name of the first missing required function, or null.
const char* fill(Library& to) {
  RequiredFunctions require{to.library};
  require("ncclGetUniqueId", to.get_unique_id);
  require("ncclCommInitRankConfig", to.comm_init_rank_config);
  require("ncclCommFinalize", to.comm_finalize);
  require("ncclCommDestroy", to.comm_destroy);
  require("ncclCommAbort", to.comm_abort);
  require("ncclCommGetAsyncError", to.comm_get_async_error);
  require("ncclGetErrorString", to.get_error_string);
  require("ncclGetLastError", to.get_last_error);
  require("ncclAllReduce", to.all_reduce);
  require("ncclBroadcast", to.broadcast);
  require("ncclReduce", to.reduce);
  require("ncclAllGather", to.all_gather);
  require("ncclReduceScatter", to.reduce_scatter);
  require("ncclSend", to.send);
  require("ncclRecv", to.recv);
  require("ncclGroupStart", to.group_start);
  require("ncclGroupEnd", to.group_end);
  (void)load(to.library, "ncclCommInitRankScalable", to.comm_init_rank_scalable);
  (void)load(to.library, "ncclCommSplit", to.comm_split);
  (void)load(to.library, "ncclMemAlloc", to.mem_alloc);
  (void)load(to.library, "ncclMemFree", to.mem_free);
  (void)load(to.library, "ncclCommRegister", to.comm_register);
  (void)load(to.library, "ncclCommDeregister", to.comm_deregister);
  return require.missing;
}

}  // namespace

std::string format_version(int version) {
  const int unit = version < 10000 ? 1000 : 10000;
  return concat(version / unit, '.', version % unit / 100, '.', version % 100);
}

Result<Library> Library::open() {
  // It would override the mode of every communicator: no deadlines (1), or a thread for each collective (0). Any other
  // value does nothing; it is set, as NCCL's configuration files would fill a gap.
  setenv("NCCL_COMM_BLOCKING", "-1", 1);
  const char* const chosen = std::getenv("DDRUN_NCCL_LIBRARY");
  const bool is_chosen = chosen != nullptr && *chosen != '\0';
  const auto* const program = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  auto library = is_chosen ? SharedLibrary::open(chosen)
                           : open_nccl("libnccl.so.2", python_prefixes(Environment(environ), program));
  if (!library) return fail(Errc::unsupported, concat("no NCCL: ", library.error().message));
  Library opened{std::move(*library)};
  if (!load(opened.library, "ncclGetVersion", opened.get_version) || opened.get_version(&opened.version) != success) {
    return fail(Errc::unsupported, concat(opened.library.file(), " is not NCCL: it does not tell its version"));
  }
  const char* const missing = fill(opened);
  if (missing != nullptr) {
    return fail(Errc::unsupported, concat(opened.library.file(), " is NCCL ", format_version(opened.version),
                                          " and has no ", missing, ": NCCL 2.14 or later is needed"));
  }
  return opened;
}

std::string Library::describe(const std::string& what, Status status, Comm comm) const {
  const char* const text = get_error_string(status);
  const char* const last = get_last_error(comm);
  std::string words = concat(what, ": ", text != nullptr ? text : "unknown error");
  if (last != nullptr && *last != '\0') words += concat(" (", trim(last), ')');
  return words;
}

}  // namespace ddrun::collectives::nccl
