#include "ddrun/base/proc.hpp"

#include <limits.h>
#include <unistd.h>

#include <array>
#include <cstdio>

#include "ddrun/base/small_file.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun {

std::optional<ProcessStat> read_process_stat(pid_t pid) {
  const std::string text = read_small_file(concat("/proc/", pid, "/stat")).value_or("");
  // The name may hold blanks and brackets: what follows its last ')' is regular.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  ProcessStat stat;
  unsigned long long born = 0;
  if (std::sscanf(text.c_str() + name_end + 1,
                  " %c %d %d %d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &stat.state,
                  &stat.parent, &stat.group, &stat.session, &born) != 5) {
    return std::nullopt;
  }
  stat.born = born;
  return stat;
}

std::string own_program() {
  std::array<char, PATH_MAX> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return size > 0 ? std::string(path.data(), static_cast<std::size_t>(size)) : std::string();
}

}  // namespace ddrun
