#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/topology/cgroup.hpp"

namespace ddrun::topology {

/// A set of CPU numbers of any size, as sched_setaffinity(2) takes it: pass data() and size_bytes().
class CpuSet {
 public:
  CpuSet() = default;
  explicit CpuSet(const std::vector<int>& cpus);

  /// The kernel's list format: "0-3,8,10-11"; blanks at the ends are allowed, an empty text is the empty set.
  [[nodiscard]] static Result<CpuSet> parse(std::string_view text);

  void add(int cpu);
  void add(const CpuSet& other);
  [[nodiscard]] bool contains(int cpu) const;
  [[nodiscard]] int count() const;
  [[nodiscard]] bool empty() const { return count() == 0; }
  [[nodiscard]] std::vector<int> cpus() const;  ///< in ascending order
  [[nodiscard]] int first() const;              ///< the lowest; -1 if empty
  [[nodiscard]] CpuSet intersection(const CpuSet& other) const;
  [[nodiscard]] std::string to_string() const;  ///< "0-3,8,10-11"

  [[nodiscard]] const unsigned long* data() const { return words_.data(); }
  [[nodiscard]] std::size_t size_bytes() const { return words_.size() * sizeof(unsigned long); }

  bool operator==(const CpuSet& other) const { return cpus() == other.cpus(); }

 private:
  std::vector<unsigned long> words_;
};

/// The CPUs that this process may run on (its affinity mask, which cpusets and Slurm narrow).
/// Fails with `unavailable` only if the kernel refuses to tell.
[[nodiscard]] Result<CpuSet> allowed_cpus();

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
