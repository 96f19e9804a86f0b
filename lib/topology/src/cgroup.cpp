#include "ddrun/topology/cgroup.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::topology {

namespace {

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

Cgroup located(bool v2, std::string mount, std::string name) {
  Cgroup group;
  group.v2 = v2;
  group.directory = name == "/" ? mount : mount + name;
  // In a container the name may be that of the machine's tree, while only the container's part is mounted, as the root.
  if (!exists(group.directory) || name.find("/..") != std::string::npos) group.directory = mount;
  group.name = std::move(name);
  group.mount = std::move(mount);
  return group;
}

/// The name of `group`'s ancestor with the directory `level`.
std::string name_of(const Cgroup& group, const std::string& level) {
  if (level == group.directory) return group.name;
  const std::string name = level.substr(group.mount.size());
  return name.empty() ? "/" : name;
}

}  // namespace

std::vector<std::string> Cgroup::levels() const {
  std::vector<std::string> levels{directory};
  while (levels.back().size() > mount.size()) levels.push_back(levels.back().substr(0, levels.back().rfind('/')));
  return levels;
}

std::optional<Cgroup> own_cgroup(std::string_view controller, const SystemRoots& roots) {
  const auto text = read_small_file(roots.proc + "/self/cgroup");
  if (!text) return std::nullopt;
  const std::string root = roots.sys + "/fs/cgroup";
  std::optional<std::string> unified;
  for (const std::string& line : split(*text, '\n')) {  // "4:cpu,cpuacct:/name", "0::/name"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string name = line.substr(second + 1);
    if (controllers.empty()) {
      unified = std::move(name);
      continue;
    }
    const auto list = split(controllers, ',');
    if (std::find(list.begin(), list.end(), controller) == list.end()) continue;
    for (const std::string& mount : {concat(root, "/", controller), concat(root, "/", controllers)}) {
      if (exists(mount)) return located(false, mount, std::move(name));
    }
  }
  if (!unified) return std::nullopt;
  for (const std::string& mount : {root, root + "/unified"}) {
    if (exists(mount + "/cgroup.procs")) return located(true, mount, *unified);
  }
  return std::nullopt;
}

std::optional<MemoryLimit> memory_limit(const SystemRoots& roots) {
  const auto group = own_cgroup("memory", roots);
  if (!group) return std::nullopt;
  std::optional<MemoryLimit> least;
  for (const std::string& level : group->levels()) {
    const auto bytes = read_number(level + (group->v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    // Version 1 reports "no limit" as the largest multiple of the page size.
    constexpr std::int64_t none = std::int64_t{1} << 62U;
    if (!bytes || *bytes >= none || (least && least->bytes <= *bytes)) continue;
    least = MemoryLimit{*bytes, name_of(*group, level)};
  }
  return least;
}

}  // namespace ddrun::topology
