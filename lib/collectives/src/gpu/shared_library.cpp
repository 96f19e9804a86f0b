#include "gpu/shared_library.hpp"

#ifndef DDRUN_LINKED_STATICALLY
#include <dlfcn.h>
#include <link.h>
#endif

#include "ddrun/base/text.hpp"

namespace ddrun::collectives {

#ifdef DDRUN_LINKED_STATICALLY

// dlopen() of a static glibc works only with the same glibc version installed and loads a second copy of it, so a
// static program does not use it.
bool can_open_libraries() { return false; }

Result<SharedLibrary> SharedLibrary::open(const std::string& path) {
  return fail(Errc::unsupported, concat(path,
                                        ": this program is linked statically and cannot open libraries; "
                                        "build it with -DDDRUN_WORKER_LINK=partial"));
}

void* SharedLibrary::find(const char* /*name*/) const { return nullptr; }

#else

bool can_open_libraries() { return true; }

Result<SharedLibrary> SharedLibrary::open(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return fail(Errc::unsupported, why != nullptr ? why : concat(path, ": cannot be opened"));
  }
  SharedLibrary library(handle, path);
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] != '\0') {
    library.file_ = map->l_name;
  }
  return library;
}

void* SharedLibrary::find(const char* name) const { return dlsym(handle_, name); }

#endif

}  // namespace ddrun::collectives
