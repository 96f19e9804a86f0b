#include "ddrun/topology/cpus.hpp"

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "ddrun/test/files.hpp"

using namespace ddrun;
using namespace ddrun::topology;
using test::TemporaryDirectory;

namespace {

/// Two sockets of four cores with two hyper-threads each, numbered as usual: siblings are 8 apart.
SystemRoots two_sockets(const TemporaryDirectory& dir) {
  const std::string system = "sys/devices/system/";
  dir.file(system + "node/online", "0-1\n");
  dir.file(system + "node/node0/cpulist", "0-3,8-11\n");
  dir.file(system + "node/node1/cpulist", "4-7,12-15\n");
  for (int cpu = 0; cpu < 16; ++cpu) {
    dir.file(concat(system, "cpu/cpu", cpu, "/topology/thread_siblings_list"), concat(cpu % 8, ",", cpu % 8 + 8, "\n"));
  }
  return {dir.path() + "/sys", dir.path() + "/proc", dir.path() + "/dev"};
}

std::string text(const CpuLayout& layout) {
  std::string text;
  for (const Core& core : layout.cores) text += concat(core.node, ":", core.cpus.to_string(), " ");
  text += "|";
  for (const Node& node : layout.nodes) text += concat(" ", node.id, ":", node.cpus.to_string());
  return text;
}

}  // namespace

TEST_CASE("cores and nodes are read from sys") {
  const TemporaryDirectory dir;
  const CpuLayout layout = read_cpu_layout(CpuSet::parse("0-15").value(), two_sockets(dir));
  CHECK(text(layout) == "0:0,8 0:1,9 0:2,10 0:3,11 1:4,12 1:5,13 1:6,14 1:7,15 | 0:0-3,8-11 1:4-7,12-15");
}

TEST_CASE("CPUs that are not allowed are not there") {
  const TemporaryDirectory dir;
  const CpuLayout layout = read_cpu_layout(CpuSet::parse("5,6,14").value(), two_sockets(dir));
  CHECK(text(layout) == "1:5 1:6,14 | 1:5,6,14");
}

TEST_CASE("without topology files there is one node and a core per CPU") {
  const TemporaryDirectory dir;
  const CpuLayout layout = read_cpu_layout(CpuSet::parse("0,2").value(), {dir.path(), dir.path(), dir.path()});
  CHECK(text(layout) == "0:0 0:2 | 0:0,2");
}

TEST_CASE("the layout of this machine has every allowed CPU once") {
  const CpuSet allowed = allowed_cpus().value();
  const CpuLayout layout = read_cpu_layout(allowed);
  CpuSet seen;
  int count = 0;
  for (const Core& core : layout.cores) {
    seen.add(core.cpus);
    count += core.cpus.count();
  }
  CHECK(seen == allowed);
  CHECK(count == allowed.count());
}
