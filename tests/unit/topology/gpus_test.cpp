#include "ddrun/topology/nproc.hpp"

#include <filesystem>

#include "ddrun/base/text.hpp"
#include "ddrun/test/catch.hpp"
#include "roots.hpp"

using namespace ddrun;
using namespace ddrun::topology;
using test::roots_of;
using test::TemporaryDirectory;

namespace {

SystemRoots four_nvidia(const TemporaryDirectory& dir) {
  for (int i = 0; i < 4; ++i) {
    dir.file(concat("dev/nvidia", i), "");
    dir.file(concat("proc/driver/nvidia/gpus/0000:0", i, ":00.0/information"), "");
  }
  for (const char* other : {"dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-modeset", "dev/null"}) dir.file(other, "");
  return roots_of(dir);
}

int seen(const SystemRoots& roots, const char* list) { return find_gpus({list, {}, {}}, roots).count; }

}  // namespace

TEST_CASE("NVIDIA devices are counted by the driver's files") {
  const TemporaryDirectory dir;
  const SystemRoots roots = four_nvidia(dir);
  CHECK(find_gpus({}, roots).count == 4);
  CHECK(find_gpus({}, roots).kind == "NVIDIA");
  std::filesystem::remove(dir.path() + "/dev/nvidia3");
  CHECK(find_gpus({}, roots).count == 3);  // a container with fewer device files
  for (int i = 0; i < 3; ++i) std::filesystem::remove(concat(dir.path(), "/dev/nvidia", i));
  CHECK(find_gpus({}, roots).count == 4);  // device files are not made yet
}

TEST_CASE("GPUs are counted only where a driver is") {
  const TemporaryDirectory dir;
  CHECK(count_gpus({}, four_nvidia(dir)) == 4);
  CHECK(count_gpus({"2", {}, {}}, roots_of(dir)) == 1);
  CHECK(count_gpus({}, {"/none", "/none", "/none"}) == 0);
}

TEST_CASE("CUDA_VISIBLE_DEVICES is read as CUDA reads it") {
  const TemporaryDirectory dir;
  const SystemRoots roots = four_nvidia(dir);
  CHECK(seen(roots, "0,1") == 2);
  CHECK(seen(roots, "3") == 1);
  CHECK(seen(roots, " 2, 0") == 2);
  CHECK(seen(roots, "0,1,7,2") == 2);  // stops at the first invalid entry
  CHECK(seen(roots, "1,-1,2") == 1);
  CHECK(seen(roots, "GPU-8932f937-d72c,1") == 2);
  CHECK(seen(roots, "MIG-1,MIG-2,MIG-3") == 3);
  CHECK(seen(roots, "") == 0);
  CHECK(find_gpus({"", {}, {}}, roots).none_note ==
        "this machine has 4 NVIDIA devices, but CUDA_VISIBLE_DEVICES='' lets none through");
}

TEST_CASE("AMD devices are the kfd nodes with SIMD units") {
  const TemporaryDirectory dir;
  dir.file("dev/kfd", "");
  const std::string nodes = "sys/class/kfd/kfd/topology/nodes/";
  dir.file(nodes + "0/properties", "cpu_cores_count 64\nsimd_count 0\n");
  dir.file(nodes + "1/properties", "cpu_cores_count 0\nsimd_count 440\n");
  dir.file(nodes + "2/properties", "cpu_cores_count 0\nsimd_count 440\n");
  CHECK(find_gpus({}, roots_of(dir)).count == 2);
  CHECK(find_gpus({}, roots_of(dir)).kind == "AMD");
  CHECK(find_gpus({{}, "1", {}}, roots_of(dir)).count == 1);
  CHECK(find_gpus({"0", {}, "0,1"}, roots_of(dir)).count == 2);
  CHECK(find_gpus({"0", {}, {}}, roots_of(dir)).count == 1);
}

TEST_CASE("the number of workers follows what there is") {
  const CpuSet cpus = CpuSet::parse("0-5").value();
  const Gpus two{2, "NVIDIA", ""};
  const Gpus none = find_gpus({}, {"/none", "/none", "/none"});
  using Kind = NprocSpec::Kind;
  CHECK(resolve_nproc({Kind::count, 3}, cpus, two).value() == 3);
  CHECK(resolve_nproc({Kind::cpu, 1}, cpus, two).value() == 6);
  CHECK(resolve_nproc({Kind::gpu, 1}, cpus, two).value() == 2);
  CHECK(resolve_nproc({Kind::automatic, 1}, cpus, two).value() == 2);
  CHECK(resolve_nproc({Kind::automatic, 1}, cpus, none).value() == 6);
  CHECK(resolve_nproc({Kind::cpu, 1}).value() == allowed_cpus().value().count());

  const auto failed = resolve_nproc({Kind::gpu, 1}, cpus, none);
  REQUIRE_FALSE(failed);
  CHECK(failed.error().code == Errc::invalid_argument);
  CHECK(failed.error().message ==
        "--nproc-per-node=gpu, but there is no GPU: looked for NVIDIA devices (/dev/nvidia*, "
        "/proc/driver/nvidia/gpus) and AMD devices (/dev/kfd with /sys/class/kfd) that may be used; use a number, or "
        "cpu");
  CHECK_FALSE(resolve_nproc({Kind::count, 0}, cpus, two));
}

TEST_CASE("a job has the allocated GPUs and not all of the machine's") {
  using Kind = NprocSpec::Kind;
  const CpuSet cpus = CpuSet::parse("0-5").value();
  const TemporaryDirectory dir;
  for (const char* name : {"dev/nvidia0", "dev/nvidia1", "dev/nvidia2", "dev/nvidia3"}) dir.file(name, "");
  const auto workers = [&](Kind kind, int given, const GpuVariables& variables) {
    const Gpus here = find_gpus(variables, roots_of(dir));
    NprocSpec nproc{kind, 1};
    limit_gpus(nproc, given, here);
    return resolve_nproc(nproc, cpus, here).value();
  };
  CHECK(workers(Kind::gpu, 2, {}) == 2);
  CHECK(workers(Kind::automatic, 2, {}) == 2);
  CHECK(workers(Kind::gpu, 8, {}) == 4);
  CHECK(workers(Kind::gpu, 2, {"3", {}, {}}) == 1);  // the script has selected one of two
  CHECK(workers(Kind::count, 2, {}) == 1);
  CHECK(workers(Kind::cpu, 2, {}) == 6);
}
