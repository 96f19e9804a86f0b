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

/// This process's affinity mask, as narrowed by cpusets and Slurm. Fails with `unavailable` if sched_getaffinity()
/// fails.
[[nodiscard]] Result<CpuSet> allowed_cpus();

/// One physical core: its allowed hyper-threads.
struct Core {
  CpuSet cpus;
  int node = 0;
};

/// One NUMA node: its allowed CPUs.
struct Node {
  int id = 0;
  CpuSet cpus;
};

/// The topology of the allowed CPUs.
struct CpuLayout {
  CpuSet allowed;
  std::vector<Core> cores;  ///< by node, then by first CPU, so that neighbours are close
  std::vector<Node> nodes;  ///< by number; only nodes with an allowed CPU; at least one
};

/// Reads about two small files of /sys per CPU. Without them each CPU is a core of node 0.
[[nodiscard]] CpuLayout read_cpu_layout(const CpuSet& allowed, const SystemRoots& roots = {});

/// The CPUs for each worker of this machine.
struct BindingPlan {
  std::vector<CpuSet> cpus;           ///< by worker, an empty set for one that is not bound; empty: none is
  std::vector<std::string> warnings;  ///< for the user, one line each
};

/// cores: the physical cores split evenly, in the order of the layout, hyper-threads together, the remainder to the
///        first ranks; with more ranks than cores they share, round robin, and there is a warning.
/// numa:  each rank gets all CPUs of one node; ranks go over the nodes in blocks (0-3 on node 0, 4-7 on node 1).
[[nodiscard]] BindingPlan plan_bindings(BindMode mode, int local_world_size, const CpuLayout& layout);

/// For --report-bindings, a line per worker, with their `names`: "rank 0: cpus 0-3,8-11 (node 0)".
[[nodiscard]] std::vector<std::string> describe_bindings(const BindingPlan& plan, const std::vector<std::string>& names,
                                                         const CpuLayout& layout);

}  // namespace ddrun::topology
