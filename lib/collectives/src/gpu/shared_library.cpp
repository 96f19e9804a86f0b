#include "gpu/shared_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include "ddrun/base/text.hpp"

// Weak, so that the linker does not warn of them in a static program.
#pragma weak dlopen
#pragma weak dlsym
#pragma weak dlerror
#pragma weak dlinfo

namespace ddrun::collectives {

// dlopen() of a static glibc works only with the same glibc version installed and loads a second copy of it, so a
// program without a dynamic linker does not use it.
bool can_open_libraries() {
  const auto has_interpreter = [](dl_phdr_info* program, std::size_t /*size*/, void* /*data*/) {
    for (int i = 0; i < program->dlpi_phnum; ++i) {
      if (program->dlpi_phdr[i].p_type == PT_INTERP) {
        return 1;
      }
    }
    return -1;  // the first one is the program itself: look no further
  };
  return dl_iterate_phdr(has_interpreter, nullptr) == 1;
}

Result<SharedLibrary> SharedLibrary::open(const std::string& path) {
  if (!can_open_libraries()) {
    return fail(Errc::unsupported, concat(path,
                                          ": this program is linked statically and cannot open libraries; "
                                          "build it with -DDDRUN_WORKER_LINK=partial"));
  }
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

}  // namespace ddrun::collectives
