#include "ddrun/topology/bindings.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"

namespace ddrun::topology {

namespace {

BindingPlan over_cores(std::size_t ranks, const std::vector<Core>& cores) {
  BindingPlan plan;
  plan.cpus.resize(ranks);
  if (ranks > cores.size()) {
    for (std::size_t rank = 0; rank < ranks; ++rank) plan.cpus[rank] = cores[rank % cores.size()].cpus;
    plan.warnings.push_back(concat("--bind=cores: ", ranks, " workers share ",
                                   counted(static_cast<long long>(cores.size()), "core"),
                                   "; use fewer workers, or --bind=none to let the kernel place them"));
    return plan;
  }
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t size = cores.size() / ranks + (rank < cores.size() % ranks ? 1 : 0);
    for (std::size_t i = 0; i < size; ++i) plan.cpus[rank].add(cores[next++].cpus);
  }
  return plan;
}

BindingPlan over_nodes(std::size_t ranks, const std::vector<Node>& nodes) {
  BindingPlan plan;
  for (std::size_t rank = 0; rank < ranks; ++rank) plan.cpus.push_back(nodes[rank * nodes.size() / ranks].cpus);
  return plan;
}

std::string nodes_of(const CpuSet& cpus, const std::vector<Node>& nodes) {
  std::vector<int> ids;
  for (const Node& node : nodes) {
    if (!node.cpus.intersection(cpus).empty()) ids.push_back(node.id);
  }
  return concat(ids.size() == 1 ? "node " : "nodes ", fold_ranks(ids));
}

}  // namespace

BindingPlan plan_bindings(BindMode mode, int local_world_size, const CpuLayout& layout) {
  const auto ranks = static_cast<std::size_t>(std::max(local_world_size, 0));
  if (mode == BindMode::cores && !layout.cores.empty()) return over_cores(ranks, layout.cores);
  if (mode == BindMode::numa && !layout.nodes.empty()) return over_nodes(ranks, layout.nodes);
  return {};
}

std::vector<std::string> describe_bindings(const BindingPlan& plan, int local_world_size, const CpuLayout& layout,
                                           int base_rank) {
  std::vector<std::string> lines;
  for (int local_rank = 0; local_rank < local_world_size; ++local_rank) {
    const bool bound = !plan.cpus.empty();
    const CpuSet& cpus = bound ? plan.cpus[static_cast<std::size_t>(local_rank)] : layout.allowed;
    lines.push_back(concat("rank ", base_rank + local_rank, ": ", cpus.count() == 1 ? "cpu " : "cpus ",
                           cpus.to_string(), " (", nodes_of(cpus, layout.nodes), bound ? ")" : ", not bound)"));
  }
  return lines;
}

}  // namespace ddrun::topology
