#pragma once

#include <string>
#include <vector>

#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/topology/cpus.hpp"

namespace ddrun::topology {

/// Which CPUs each worker of this machine may run on.
struct BindingPlan {
  std::vector<CpuSet> cpus;           ///< by local rank; empty: no worker is bound
  std::vector<std::string> warnings;  ///< for the user, a sentence each
};

/// cores: the physical cores split evenly, in the order of the layout, hyper-threads together, the remainder to the
///        first ranks; with more ranks than cores they share, round robin, and there is a warning.
/// numa:  each rank gets all CPUs of one node; ranks go over the nodes in blocks (0-3 on node 0, 4-7 on node 1).
[[nodiscard]] BindingPlan plan_bindings(BindMode mode, int local_world_size, const CpuLayout& layout);

/// For --report-bindings, a line per worker: "rank 0: cpus 0-3,8-11 (node 0)". `base_rank`: rank of local rank 0.
[[nodiscard]] std::vector<std::string> describe_bindings(const BindingPlan& plan, int local_world_size,
                                                         const CpuLayout& layout, int base_rank);

}  // namespace ddrun::topology
