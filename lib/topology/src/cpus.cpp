#include "ddrun/topology/cpus.hpp"

#include <algorithm>
#include <utility>

#include "ddrun/base/small_file.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::topology {

namespace {

CpuSet read_set(const std::string& path) {
  const auto text = read_small_file(path);
  if (!text) return {};
  return CpuSet::parse(*text).value_or(CpuSet());
}

std::vector<Node> read_nodes(const CpuSet& allowed, const SystemRoots& roots) {
  const std::string directory = roots.sys + "/devices/system/node";
  std::vector<Node> nodes;
  CpuSet seen;
  for (const int id : read_set(directory + "/online").cpus()) {
    CpuSet cpus = read_set(concat(directory, "/node", id, "/cpulist")).intersection(allowed);
    if (cpus.empty()) continue;
    seen.add(cpus);
    nodes.push_back({id, std::move(cpus)});
  }
  // CPUs of no node, or a kernel without NUMA: the first node takes them.
  if (nodes.empty()) nodes.push_back({0, {}});
  for (const int cpu : allowed.cpus()) {
    if (!seen.contains(cpu)) nodes.front().cpus.add(cpu);
  }
  return nodes;
}

}  // namespace

CpuLayout read_cpu_layout(const CpuSet& allowed, const SystemRoots& roots) {
  CpuLayout layout;
  layout.allowed = allowed;
  layout.nodes = read_nodes(allowed, roots);
  for (const Node& node : layout.nodes) {
    CpuSet seen;
    for (const int cpu : node.cpus.cpus()) {
      if (seen.contains(cpu)) continue;
      CpuSet siblings = read_set(concat(roots.sys, "/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"))
                            .intersection(node.cpus);
      siblings.add(cpu);
      seen.add(siblings);
      layout.cores.push_back({std::move(siblings), node.id});
    }
  }
  return layout;
}

}  // namespace ddrun::topology
