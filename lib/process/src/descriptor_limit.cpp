#include "ddrun/process/descriptor_limit.hpp"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

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
  DIR* dir = ::opendir("/proc/self/fd");
  if (dir == nullptr) return errno == EMFILE || errno == ENFILE ? 0 : now.rlim_cur;
  std::size_t used = 0;
  while (const dirent* entry = ::readdir(dir)) {
    // One above the limit, opened before it was lowered, takes no room below it.
    const bool number = entry->d_name[0] != '.';
    if (number && static_cast<rlim_t>(::atoi(entry->d_name)) < now.rlim_cur) ++used;
  }
  ::closedir(dir);
  if (used > 0) --used;  // the directory itself
  return now.rlim_cur > used ? now.rlim_cur - used : 0;
}

}  // namespace ddrun::process
