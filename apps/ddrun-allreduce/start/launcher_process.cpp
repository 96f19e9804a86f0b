#include "start/launcher_process.hpp"

#include <unistd.h>

#include <vector>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/small_file.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::allreduce {

namespace {

bool has(pid_t id, const std::string& entry) {
  // Unreadable: somebody else's, so no wrapper of ours.
  const auto environment = read_small_file(concat("/proc/", id, "/environ"), 16U << 20U);
  if (!environment) return false;
  const std::vector<std::string> entries = split(*environment, '\0');
  for (const std::string& one : entries) {
    if (one == entry) return true;
  }
  return false;
}

}  // namespace

std::string launcher_process(const std::string& variable, const std::string& value) {
  const std::string entry = concat(variable, '=', value);
  const auto parent_of = [](pid_t id) {
    const auto stat = read_process_stat(id);
    return stat ? stat->parent : 0;
  };
  pid_t id = parent_of(getpid());
  while (id > 1 && has(id, entry)) id = parent_of(id);
  const auto stat = id > 0 ? read_process_stat(id) : std::nullopt;
  return stat ? concat(id, '.', stat->born) : std::string();
}

}  // namespace ddrun::allreduce
