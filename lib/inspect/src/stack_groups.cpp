#include "stack_groups.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "ddrun/base/text.hpp"

namespace ddrun::inspect {

namespace {

/// Of libraries: where their frames wait for other ranks. Other parts of torch/distributed/ call the program, wait for
/// disks, or reach ranks by these.
constexpr std::string_view communication_files[] = {"mpi4py/",
                                                    "horovod/",
                                                    "ray/util/collective/",
                                                    "torch/distributed/distributed_c10d.py",
                                                    "torch/distributed/rendezvous.py",
                                                    "torch/distributed/_functional_collectives",
                                                    "torch/distributed/nn/functional.py",
                                                    "torch/distributed/rpc/",
                                                    "torch/distributed/_symmetric_memory/"};
/// Beginnings of functions that wait for other ranks.
constexpr std::array<std::string_view, 14> communication_functions{
    "gloo::", "c10d::", "nccl", "rccl", "MPI_", "PMPI_", "ompi_",
    "MPIR_",  "MPID",   "ucp_", "uct_", "ibv_", "fi_cq", "ddrun::allreduce"};

bool is_standard(std::string_view path) {
  return path.starts_with("<frozen ") || (in_packages(path).empty() && (path.find("/lib/python3") != path.npos ||
                                                                        path.find("/lib64/python3") != path.npos));
}

bool communicates(const NativeFrame& frame) {
  const std::string_view name = frame.function;
  const bool of_device = name.starts_with("cu") || name.starts_with("hip");
  return begins_with_any(name, communication_functions) || (of_device && name.find("Synchronize") != name.npos);
}

Stance stance_of(const RankStacks& rank, bool sockets_count) {
  if (rank.threads.empty()) return Stance::unknown;
  const ThreadStack& main = rank.threads.front();
  switch (main.state) {
    case 'Z':
    case 'X': return Stance::unknown;
    case 'T':
    case 't':
    case 'D': return Stance::halted;
    default: break;
  }
  if (find_call(main) || (sockets_count && main.on_socket)) return Stance::waits;
  return main.python.empty() && main.native.empty() && !rank.note.empty() ? Stance::unknown : Stance::apart;
}

/// Equal for ranks that are at the same place. Parts and not one text, as names of a process may hold any separator.
using Place = std::pair<char, std::vector<std::tuple<std::string_view, std::string_view, std::uint64_t>>>;

Place place_of(const RankStacks& rank) {
  if (rank.threads.empty()) return {'n', {{rank.note, "", 0}}};
  const ThreadStack& main = rank.threads.front();
  Place place{'p', {}};
  for (const PythonFrame& frame : main.python) place.second.emplace_back(frame.function, frame.file, frame.line);
  if (!main.python.empty()) return place;
  for (const NativeFrame& frame : main.native) {
    const std::string_view path = frame.module ? std::string_view(frame.module->path) : "";
    place.second.emplace_back(frame.function, path, frame.function.empty() ? frame.address : 0);
  }
  return main.native.empty() ? Place{'d', {{main.doing, "", 0}}} : Place{'f', std::move(place.second)};
}

}  // namespace

std::string_view in_packages(std::string_view path) {
  constexpr std::string_view mark = "-packages/";
  if (const std::size_t at = path.rfind(mark); at != std::string_view::npos) return path.substr(at + mark.size());
  std::size_t at = path.rfind("torch/");
  while (at != std::string_view::npos && at != 0 && path[at - 1] != '/') at = path.rfind("torch/", at - 1);
  return at == std::string_view::npos ? std::string_view() : path.substr(at);
}

bool begins_with_any(std::string_view text, std::span<const std::string_view> names) {
  return std::ranges::any_of(names, [&](std::string_view name) { return text.starts_with(name); });
}

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool is_library(const PythonFrame& frame) { return is_standard(frame.file) || !in_packages(frame.file).empty(); }

/// Only the innermost frames tell: a decorator, a training step or a hook of a library lies below the program for all
/// of its run.
std::optional<Call> find_call(const ThreadStack& thread) {
  std::optional<Call> call;
  const auto own = std::ranges::find_if_not(thread.python, is_library);
  const std::string place = own != thread.python.end() ? concat(file_name(own->file), ":", own->line) : "";
  for (const PythonFrame& frame : thread.python) {
    if (begins_with_any(in_packages(frame.file), communication_files)) call = {frame.function, place};
    else if (!is_standard(frame.file) && !in_packages(frame.file).starts_with("torch/")) break;
  }
  if (call) return call;
  bool is_caller = false;
  for (const NativeFrame& frame : thread.native) {
    if (frame.function.starts_with("_PyEval_")) break;
    if (communicates(frame)) call = {frame.function, place};
    else if (is_caller && place.empty()) call->place = frame.function;
    is_caller = communicates(frame);
  }
  return call;
}

std::vector<int> numbers_of(const std::vector<const RankStacks*>& ranks) {
  std::vector<int> numbers;
  for (const RankStacks* rank : ranks) {
    numbers.push_back(rank->rank);
    numbers.insert(numbers.end(), rank->also.begin(), rank->also.end());
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<RankName> names_of(const StackGroup& group) {
  std::vector<RankName> names;
  for (const int number : numbers_of(group.ranks)) names.push_back({group.ranks.front()->role, number});
  return names;
}

std::string host_of(const StackGroup& group) {
  const std::string& host = group.ranks.front()->host;
  const bool is_one = std::ranges::all_of(group.ranks, [&](const RankStacks* rank) { return rank->host == host; });
  return is_one ? host : "";
}

std::size_t size_of(const StackGroup& group) {
  std::size_t size = 0;
  for (const RankStacks* rank : group.ranks) size += 1 + rank->also.size();
  return size;
}

double mean_cpu(const std::vector<const RankStacks*>& ranks) {
  double sum = 0, count = 0;
  for (const RankStacks* rank : ranks) {
    const double here = 1 + static_cast<double>(rank->also.size());
    sum += here * rank->cpu;
    count += here;
  }
  return sum / count;
}

void append(std::vector<RankName>& to, const StackGroup& group) {
  for (RankName& name : names_of(group)) to.push_back(std::move(name));
}

ThreadStack common_stack(const StackGroup& group) {
  ThreadStack common = group.ranks.front()->threads.front();
  for (const RankStacks* rank : group.ranks) {
    const ThreadStack& main = rank->threads.front();
    common.on_socket = common.on_socket && main.doing == common.doing;
    for (std::size_t i = 0; i < common.python.size(); ++i) {
      std::erase_if(common.python[i].numbers, [&](const auto& number) {
        return std::ranges::find(main.python[i].numbers, number) == main.python[i].numbers.end();
      });
    }
  }
  return common;
}

bool is_in_library(const ThreadStack& thread) { return find_call(thread).has_value(); }

std::vector<StackGroup> group_ranks(const StackPage& page) {
  const bool library_used =
      std::ranges::any_of(page.ranks, [](const RankStacks& rank) { return stance_of(rank, false) == Stance::waits; });
  std::map<std::tuple<Stance, std::string, Place>, StackGroup> by_place;
  for (const RankStacks& rank : page.ranks) {
    const Stance stance = stance_of(rank, !library_used);
    StackGroup& group = by_place[{stance, rank.role, place_of(rank)}];
    group.stance = stance;
    group.ranks.push_back(&rank);
  }
  std::vector<StackGroup> groups;
  for (auto& [key, group] : by_place) groups.push_back(std::move(group));
  std::ranges::sort(groups, {}, [](const StackGroup& group) {
    return std::tuple(group.stance, size_of(group), group.ranks.front()->rank);
  });
  return groups;
}

void keep_ranks(StackPage& page, const std::function<bool(const RankName&)>& keep) {
  std::erase_if(page.ranks, [&](RankStacks& rank) {
    std::erase_if(rank.also, [&](int number) { return !keep({rank.role, number}); });
    const bool is_kept = keep({rank.role, rank.rank});
    if (is_kept || rank.also.empty()) return !is_kept;
    rank.pid = 0;
    rank.rank = rank.also.front();
    rank.also.erase(rank.also.begin());
    return false;
  });
}

void merge_equal(StackPage& page) {
  // Places refer to the ranks.
  std::map<std::tuple<std::string_view, char, std::string_view, std::string_view, Place>, std::vector<RankStacks*>>
      equal;
  std::vector<RankStacks*> heads;
  for (RankStacks& rank : page.ranks) {
    if (rank.threads.empty() || !rank.awaited.empty()) {
      heads.push_back(&rank);
      continue;
    }
    const ThreadStack& main = rank.threads.front();
    // Which of their peers are ranks may be known elsewhere.
    const std::string_view peer = main.on_socket ? std::string_view(main.doing) : "";
    auto& ranks = equal[{rank.role, main.state, peer, rank.note, place_of(rank)}];
    if (ranks.empty()) heads.push_back(&rank);
    ranks.push_back(&rank);
  }
  for (auto& [place, ranks] : equal) {
    if (ranks.size() == 1) continue;
    StackGroup group{Stance::unknown, {ranks.begin(), ranks.end()}};
    RankStacks& head = *ranks.front();
    std::vector<int> numbers = numbers_of(group.ranks);
    std::erase(numbers, head.rank);
    for (auto rank = ranks.begin() + 1; rank != ranks.end(); ++rank) {
      std::ranges::move((*rank)->connections, std::back_inserter(head.connections));
      head.connections_known = std::min(head.connections_known, (*rank)->connections_known);
    }
    double cpu = 0;
    for (const RankStacks* rank : ranks) cpu += rank->cpu * (1 + static_cast<double>(rank->also.size()));
    head.cpu = cpu / static_cast<double>(size_of(group));
    head.host = host_of(group);
    head.threads.front() = common_stack(group);
    head.also = std::move(numbers);
  }
  equal.clear();
  std::vector<RankStacks> merged;
  for (RankStacks* head : heads) merged.push_back(std::move(*head));
  page.ranks = std::move(merged);
}

}  // namespace ddrun::inspect
