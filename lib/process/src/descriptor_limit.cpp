#include "ddrun/process/descriptor_limit.hpp"

#include <dirent.h>

namespace ddrun::process {

rlimit raise_descriptor_limit() {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  if (before.rlim_cur < before.rlim_max) {
    rlimit raised = before;
    raised.rlim_cur = before.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &raised);
  }
  return before;
}

std::size_t free_descriptors() {
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  std::size_t used = 0;
  if (DIR* dir = ::opendir("/proc/self/fd")) {
    while (::readdir(dir) != nullptr) ++used;
    ::closedir(dir);
    used -= used < 3 ? used : 3;  // ".", "..", and the directory itself
  }
  return now.rlim_cur > used ? now.rlim_cur - used : 0;
}

}  // namespace ddrun::process
