#include "report/facts.hpp"

#include <sys/utsname.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/reduction.hpp"
#include "ddrun/topology/cpus.hpp"

namespace ddrun::allreduce {

namespace {

/// What follows the first `key` and a colon in a file of lines; empty if there is none.
std::string value_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto colon = line.find(':');
    if (colon != std::string::npos && trim(std::string_view(line).substr(0, colon)) == key) {
      return std::string(trim(std::string_view(line).substr(colon + 1)));
    }
  }
  return {};
}

std::string machine() {
  utsname names{};
  uname(&names);
  std::string model = value_in("/proc/cpuinfo", "model name");
  if (model.empty()) model = names.machine;
  std::string processors;
  if (const auto allowed = topology::allowed_cpus()) {
    const topology::CpuLayout layout = topology::read_cpu_layout(*allowed);
    processors = concat(", processors ", allowed->to_string(), " (", layout.cores.size(), " cores, ",
                        layout.nodes.size(), " NUMA nodes)");
  }
  return concat(names.nodename, ", ", model, processors, ", ", value_in("/proc/meminfo", "MemTotal"), " memory, ",
                names.sysname, ' ', names.release);
}

std::string library(std::string_view backend) {
  const auto known = collectives::backend_named(backend);
  const auto found = known ? collectives::probe(*known) : collectives::probe(collectives::Backend::automatic);
  if (backend != "shm" && backend != "tcp" && found) return *found;
  return concat("ddrun " DDRUN_ALLREDUCE_VERSION ", loops for ", name_of(collectives::usable_paths().back()));
}

std::string clock() {
  timespec step{};
  clock_getres(CLOCK_MONOTONIC, &step);
  return concat("steady, in steps of ", static_cast<long long>(step.tv_sec) * 1'000'000'000 + step.tv_nsec, " ns");
}

std::string date() {
  const time_t now = time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace

std::string topology_of(const std::vector<collectives::Member>& members) {
  std::vector<std::pair<std::string, std::vector<int>>> hosts;
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const std::string host = concat(members[rank].host, " processors ", members[rank].processors);
    auto found = std::find_if(hosts.begin(), hosts.end(), [&](const auto& one) { return one.first == host; });
    if (found == hosts.end()) found = hosts.insert(hosts.end(), {host, {}});
    found->second.push_back(static_cast<int>(rank));
  }
  std::vector<std::string> words;
  for (const auto& [host, ranks] : hosts) {
    words.push_back(concat(ranks.size() == 1 ? "rank " : "ranks ", fold_ranks(ranks), " on ", host));
  }
  return join(words, ", ");
}

std::vector<Fact> facts_of(const collectives::Connected& connected) {
  return {{"machine", machine()},
          {"library", library(connected.communicator->name())},
          {"topology", topology_of(connected.members)},
          {"clock", clock()},
          {"date", date()}};
}

}  // namespace ddrun::allreduce
