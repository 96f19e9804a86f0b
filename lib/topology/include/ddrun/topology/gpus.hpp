#pragma once

#include <optional>
#include <string>

#include "ddrun/topology/system_roots.hpp"

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

}  // namespace ddrun::topology
