#include "shared_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include "ddrun/base/text.hpp"

// The C library's static form has a dlopen() that works only beside the very C library it was built from, and brings a
// second one into the process. A weak reference does not take it in, so that a static program simply has none.
#pragma weak dlopen
#pragma weak dlsym
#pragma weak dlerror
#pragma weak dlinfo

namespace ddrun::collectives {

bool can_open_libraries() { return &dlopen != nullptr && &dlsym != nullptr && &dlerror != nullptr; }

Result<SharedLibrary> SharedLibrary::open(const std::string& path) {
  if (!can_open_libraries()) {
    return fail(Errc::unsupported, concat(path, ": this program is linked statically and cannot open libraries"));
  }
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = dlerror();
    return fail(Errc::unsupported, why != nullptr ? why : concat(path, ": cannot be opened"));
  }
  SharedLibrary library(handle, path);
  link_map* map = nullptr;
  if (&dlinfo != nullptr && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name[0] != '\0') {
    library.file_ = map->l_name;
  }
  return library;
}

void* SharedLibrary::find(const char* name) const { return dlsym(handle_, name); }

}  // namespace ddrun::collectives
