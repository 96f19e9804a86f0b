#include "ddrun/topology/cgroup.hpp"

#include "ddrun/test/catch.hpp"
#include "roots.hpp"

using namespace ddrun::topology;
using ddrun::test::roots_of;
using ddrun::test::TemporaryDirectory;

TEST_CASE("version 2 limits are the lowest on the way up") {
  const TemporaryDirectory dir;
  dir.file("proc/self/cgroup", "0::/user.slice/job\n");
  dir.file("sys/fs/cgroup/cgroup.procs", "");
  dir.file("sys/fs/cgroup/user.slice/memory.max", "4294967296\n");
  dir.file("sys/fs/cgroup/user.slice/job/memory.max", "max\n");
  const SystemRoots roots = roots_of(dir);
  const auto group = own_cgroup("memory", roots);
  REQUIRE(group);
  CHECK(group->v2);
  CHECK(group->directory == dir.path() + "/sys/fs/cgroup/user.slice/job");
  CHECK(group->levels().size() == 3);
  REQUIRE(memory_limit(roots));
  CHECK(memory_limit(roots)->bytes == 4294967296);
  CHECK(memory_limit(roots)->cgroup == "/user.slice");
}

TEST_CASE("version 1 controllers are found by name") {
  const TemporaryDirectory dir;
  dir.file("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n");
  dir.file("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  dir.file("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1073741824\n");
  dir.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const SystemRoots roots = roots_of(dir);
  REQUIRE(own_cgroup("cpu", roots));
  CHECK(own_cgroup("cpu", roots)->directory == dir.path() + "/sys/fs/cgroup/cpu,cpuacct/job");
  REQUIRE(memory_limit(roots));
  CHECK(memory_limit(roots)->bytes == 1073741824);
  CHECK(memory_limit(roots)->cgroup == "/job");
}

TEST_CASE("a container that sees only its own cgroup reads the limits there") {
  const TemporaryDirectory dir;
  dir.file("proc/self/cgroup", "0::/docker/0123\n");
  dir.file("sys/fs/cgroup/cgroup.procs", "");
  dir.file("sys/fs/cgroup/memory.max", "1048576\n");
  const auto limit = memory_limit(roots_of(dir));
  REQUIRE(limit);
  CHECK(limit->bytes == 1048576);
  CHECK(limit->cgroup == "/docker/0123");
}

TEST_CASE("without limits or cgroups there is none") {
  const TemporaryDirectory dir;
  CHECK_FALSE(own_cgroup("memory", roots_of(dir)));
  dir.file("proc/self/cgroup", "0::/\n");
  dir.file("sys/fs/cgroup/cgroup.procs", "");
  CHECK(own_cgroup("memory", roots_of(dir)));
  CHECK_FALSE(memory_limit(roots_of(dir)));
}
