#include "ddrun/topology/cpus.hpp"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::topology {

namespace {

constexpr std::size_t word_bits = sizeof(unsigned long) * 8;
constexpr int max_cpus = 1 << 20;  // above any kernel's limit; bounds memory

}  // namespace

CpuSet::CpuSet(const std::vector<int>& cpus) {
  for (const int cpu : cpus) add(cpu);
}

Result<CpuSet> CpuSet::parse(std::string_view text) {
  text = trim(text);
  CpuSet set;
  if (text.empty()) return set;
  const auto bad = [&] {
    return fail(Errc::invalid_argument, concat("'", text, "' is not a list of CPUs such as 0-3,8"));
  };
  for (const std::string& part : split(text, ',')) {
    const std::size_t dash = part.find('-');
    const auto low = parse_integer(std::string_view(part).substr(0, dash), 0, max_cpus);
    const auto high =
        dash == std::string::npos ? low : parse_integer(std::string_view(part).substr(dash + 1), 0, max_cpus);
    if (!low || !high || *low > *high) return bad();
    for (long long cpu = *low; cpu <= *high; ++cpu) set.add(static_cast<int>(cpu));
  }
  return set;
}

void CpuSet::add(int cpu) {
  const auto at = static_cast<std::size_t>(cpu);
  if (at / word_bits >= words_.size()) words_.resize(at / word_bits + 1);
  words_[at / word_bits] |= 1UL << (at % word_bits);
}

void CpuSet::add(const CpuSet& other) {
  words_.resize(std::max(words_.size(), other.words_.size()));
  for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
}

bool CpuSet::contains(int cpu) const {
  const auto at = static_cast<std::size_t>(cpu);
  return cpu >= 0 && at / word_bits < words_.size() && (words_[at / word_bits] >> (at % word_bits) & 1U) != 0;
}

int CpuSet::count() const {
  int count = 0;
  for (const unsigned long word : words_) count += std::popcount(word);
  return count;
}

std::vector<int> CpuSet::cpus() const {
  std::vector<int> cpus;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    for (unsigned long word = words_[i]; word != 0; word &= word - 1) {
      cpus.push_back(static_cast<int>(i * word_bits) + std::countr_zero(word));
    }
  }
  return cpus;
}

int CpuSet::first() const {
  for (std::size_t i = 0; i < words_.size(); ++i) {
    if (words_[i] != 0) return static_cast<int>(i * word_bits) + std::countr_zero(words_[i]);
  }
  return -1;
}

CpuSet CpuSet::intersection(const CpuSet& other) const {
  CpuSet result;
  result.words_.resize(std::min(words_.size(), other.words_.size()));
  for (std::size_t i = 0; i < result.words_.size(); ++i) result.words_[i] = words_[i] & other.words_[i];
  return result;
}

std::string CpuSet::to_string() const { return fold_ranks(cpus()); }

Result<CpuSet> allowed_cpus() {
  // The mask must be at least as large as the kernel's: 1024 CPUs, 8192 or more.
  for (std::size_t bits = 1024; bits <= static_cast<std::size_t>(max_cpus); bits *= 2) {
    std::vector<unsigned long> words(bits / word_bits);
    if (::sched_getaffinity(0, words.size() * sizeof(unsigned long), reinterpret_cast<cpu_set_t*>(words.data())) == 0) {
      CpuSet set;
      for (std::size_t cpu = 0; cpu < bits; ++cpu) {
        if ((words[cpu / word_bits] >> (cpu % word_bits) & 1U) != 0) set.add(static_cast<int>(cpu));
      }
      return set;
    }
    if (errno != EINVAL) break;
  }
  return fail_errno(Errc::unavailable, "cannot learn which CPUs may be used (sched_getaffinity)", errno);
}

// ---- topology

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
  // CPUs without a node, or a kernel without NUMA: add them to the first node.
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

std::vector<std::string> describe_bindings(const BindingPlan& plan, const std::vector<std::string>& names,
                                           const CpuLayout& layout) {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool bound = !plan.cpus.empty() && !plan.cpus[i].empty();
    const CpuSet& cpus = bound ? plan.cpus[i] : layout.allowed;
    lines.push_back(concat(names[i], ": ", cpus.count() == 1 ? "cpu " : "cpus ", cpus.to_string(), " (",
                           nodes_of(cpus, layout.nodes), bound ? ")" : ", not bound)"));
  }
  return lines;
}

}  // namespace ddrun::topology
