#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/topology/cgroup.hpp"
#include "ddrun/topology/cpus.hpp"

namespace ddrun::topology {

/// The variables that select devices; unset differs from empty.
struct GpuVariables {
  std::optional<std::string> cuda_visible_devices;
  std::optional<std::string> rocr_visible_devices;
  std::optional<std::string> hip_visible_devices;
  [[nodiscard]] static GpuVariables from_environment();
};

struct Gpus {
  int count = 0;          ///< devices visible to a worker
  std::string kind;       ///< "NVIDIA" or "AMD"; empty if there is none
  std::string none_note;  ///< for count 0: what was searched, or the variable that hides the devices
};

/// Counts GPUs in microseconds without loading a driver library, which would initialise the devices: NVIDIA by the
/// driver's files in /proc and /dev, AMD by /sys/class/kfd.
[[nodiscard]] Gpus find_gpus(const GpuVariables& variables, const SystemRoots& roots = {});

/// The count of find_gpus(); without a driver it only checks three paths.
[[nodiscard]] int count_gpus(const GpuVariables& variables, const SystemRoots& roots = {});

/// The number of workers for --nproc-per-node: the given number, allowed CPUs (`cpu`), visible GPUs (`gpu`), or GPUs if
/// there are any, else CPUs (`auto`). At least 1. Fails with `invalid_argument` for `gpu` without a GPU.
[[nodiscard]] Result<int> resolve_nproc(const NprocSpec& nproc, const CpuSet& allowed, const Gpus& gpus);

/// The same; reads only what is needed: nothing for a number.
[[nodiscard]] Result<int> resolve_nproc(const NprocSpec& nproc, const SystemRoots& roots = {});

/// Limits `gpu` and `auto` to the `allocated` GPUs of a scheduler, of the machine's `visible` ones.
void limit_gpus(NprocSpec& nproc, int allocated, const Gpus& visible);

/// The devices that this machine's workers may use, as CUDA_VISIBLE_DEVICES names them.
struct VisibleDevices {
  std::vector<std::string> names;
  bool by_hip = false;  ///< HIP_VISIBLE_DEVICES, which HIP reads first, names them too
};

/// The list of the environment; without one the numbers of the machine's devices (find_gpus()).
[[nodiscard]] VisibleDevices visible_devices(const Environment& environment);

/// A program's --gpus.
struct GpuRequest {
  std::string text;  ///< "4": the next four; "0-3,6" or names: these; "0": none; empty: not given
  std::string role;  ///< for messages; empty: the only program
};

/// The devices of each request, in order; nothing for one that is not given. Numbers of lists count in `visible`; a
/// count takes the next ones that no list names. Fails with `invalid_argument` if there are not enough.
[[nodiscard]] Result<std::vector<std::optional<std::vector<std::string>>>> divide_gpus(
    const std::vector<GpuRequest>& requests, const std::vector<std::string>& visible);

}  // namespace ddrun::topology
