#pragma once

#include <optional>
#include <string>

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/topology/cgroup.hpp"
#include "ddrun/topology/cpus.hpp"

namespace ddrun::topology {

/// The values of the variables that hide or choose devices; unset is not the same as empty.
struct GpuVariables {
  std::optional<std::string> cuda_visible_devices;
  std::optional<std::string> rocr_visible_devices;
  std::optional<std::string> hip_visible_devices;
  [[nodiscard]] static GpuVariables from_environment();
};

struct Gpus {
  int count = 0;          ///< devices that a worker would see
  std::string kind;       ///< "NVIDIA" or "AMD"; empty if there is none
  std::string none_note;  ///< for count 0: what was looked for, or what hides the devices
};

/// Counts GPUs without loading a driver's library, and so without waking a device: microseconds, and no memory.
/// NVIDIA by the driver's files in /proc and /dev, AMD by /sys/class/kfd.
[[nodiscard]] Gpus find_gpus(const GpuVariables& variables, const SystemRoots& roots = {});

/// find_gpus(), where a driver is: three paths are looked at, and no directory read, where there is none.
[[nodiscard]] int count_gpus(const GpuVariables& variables, const SystemRoots& roots = {});

/// The number of workers that --nproc-per-node means here: the number given, CPUs that may be used (`cpu`), GPUs that
/// may be seen (`gpu`), or GPUs if there are any and else CPUs (`auto`). Always at least 1.
/// Fails with `invalid_argument` when GPUs were asked for and there is none.
[[nodiscard]] Result<int> resolve_nproc(const NprocSpec& nproc, const CpuSet& allowed, const Gpus& gpus);

/// The same, looking only at what is needed for the answer: at nothing for a number.
[[nodiscard]] Result<int> resolve_nproc(const NprocSpec& nproc, const SystemRoots& roots = {});

/// Where a scheduler gives this job `given` GPUs of a machine that shows `here`, `gpu` and `auto` mean no more than
/// that.
void limit_gpus(NprocSpec& nproc, int allocated, const Gpus& visible);

}  // namespace ddrun::topology
