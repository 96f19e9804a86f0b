#include "start/launcher_process.hpp"

#include <unistd.h>

#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/small_file.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::allreduce {

namespace {

struct Process {
  long long parent = 0;
  std::string begin;  ///< in clock ticks since the machine started: no two processes have both this and the id
};

/// From /proc/ID/stat, see proc(5). The name in brackets may have anything in it.
Process look_at(long long id) {
  Process process;
  const auto text = read_small_file(concat("/proc/", id, "/stat"));
  const std::size_t name_end = text ? text->rfind(')') : std::string::npos;
  if (name_end == std::string::npos) return process;
  const std::vector<std::string> fields = split(trim(std::string_view(*text).substr(name_end + 1)), ' ');
  constexpr std::size_t kParent = 1;
  constexpr std::size_t kBegin = 19;
  if (fields.size() <= kBegin) return process;
  process.parent = parse_integer(fields[kParent], 0, 1LL << 32).value_or(0);
  process.begin = fields[kBegin];
  return process;
}

bool has(long long id, const std::string& entry) {
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
  long long id = look_at(getpid()).parent;
  while (id > 1 && has(id, entry)) id = look_at(id).parent;
  const std::string begin = id > 0 ? look_at(id).begin : std::string();
  return begin.empty() ? std::string() : concat(id, '.', begin);
}

}  // namespace ddrun::allreduce
