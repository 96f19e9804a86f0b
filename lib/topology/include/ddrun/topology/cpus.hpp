#pragma once

#include <vector>

#include "ddrun/topology/cpu_set.hpp"
#include "ddrun/topology/system_roots.hpp"

namespace ddrun::topology {

/// One physical core: its hyper-threads, as far as we may use them.
struct Core {
  CpuSet cpus;
  int node = 0;
};

/// One NUMA node, as far as we may use it.
struct Node {
  int id = 0;
  CpuSet cpus;
};

/// How the CPUs that we may use lie in the machine.
struct CpuLayout {
  CpuSet allowed;
  std::vector<Core> cores;  ///< by node, then by first CPU: neighbours in this order are near each other
  std::vector<Node> nodes;  ///< by number; only those with a CPU for us; at least one
};

/// Reads /sys: about two small files per CPU. Where it says nothing, each CPU is a core and all are node 0.
[[nodiscard]] CpuLayout read_cpu_layout(const CpuSet& allowed, const SystemRoots& roots = {});

}  // namespace ddrun::topology
