#include "ddrun/process/descriptor_limit.hpp"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

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

void reserve_descriptors(std::size_t count) {
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  const auto highest = std::min<rlim_t>({count, now.rlim_cur, 1 << 20});
  if (highest == 0) return;
  // The table never shrinks, so the descriptor may be closed.
  const int last = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, static_cast<int>(highest - 1));
  if (last >= 0) ::close(last);
}

std::size_t free_descriptors() {
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  // Since Linux 6.2 the directory's size is the number of descriptors; counting them takes 0.1 ms. It includes those
  // above the limit, so it is a lower bound of the free ones and used only while there are many.
  constexpr rlim_t plenty = 512;
  struct stat info {};
  if (::stat("/proc/self/fd", &info) == 0 && info.st_size > 0) {
    const auto open = static_cast<rlim_t>(info.st_size);
    if (open + plenty < now.rlim_cur) return now.rlim_cur - open;
  }
  DIR* dir = ::opendir("/proc/self/fd");
  if (dir == nullptr) return errno == EMFILE || errno == ENFILE ? 0 : now.rlim_cur;
  std::size_t used = 0;
  while (const dirent* entry = ::readdir(dir)) {
    // Those above the limit, opened before it was lowered, do not count against it.
    const bool number = entry->d_name[0] != '.';
    if (number && static_cast<rlim_t>(::atoi(entry->d_name)) < now.rlim_cur) ++used;
  }
  ::closedir(dir);
  if (used > 0) --used;  // the directory itself
  return now.rlim_cur > used ? now.rlim_cur - used : 0;
}

}  // namespace ddrun::process
