#include "ddrun/topology/nproc.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::topology {

namespace {

/// The number of accessible device files, which in a container may be lower than the driver's. If there is none, they
/// are created on first use, and the driver's list counts.
int nvidia_devices(const SystemRoots& roots) {
  int files = 0;
  for (const std::string& name : names_in(roots.dev)) {
    std::string_view number = name;
    if (!number.starts_with("nvidia")) continue;
    number.remove_prefix(6);
    const bool digits = !number.empty() &&
                        std::all_of(number.begin(), number.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (digits && ::access(concat(roots.dev, "/", name).c_str(), R_OK | W_OK) == 0) ++files;
  }
  const auto known = static_cast<int>(names_in(roots.proc + "/driver/nvidia/gpus").size());
  if (files == 0) return known;
  return known == 0 ? files : std::min(files, known);
}

int amd_devices(const SystemRoots& roots) {
  if (::access((roots.dev + "/kfd").c_str(), R_OK | W_OK) != 0) return 0;
  int count = 0;
  const std::string nodes = roots.sys + "/class/kfd/kfd/topology/nodes";
  for (const std::string& name : names_in(nodes)) {
    // CPUs are nodes, too, without SIMD units.
    if (read_keyed_number(concat(nodes, "/", name, "/properties"), "simd_count").value_or(0) > 0) ++count;
  }
  return count;
}

/// The number of `count` devices in a list such as "0,1", "GPU-8932f937,1" or "". As in CUDA, the list ends at the
/// first invalid entry.
int visible(const std::string& list, int count) {
  int seen = 0;
  for (const std::string& part : split(list, ',')) {
    const std::string_view entry = trim(part);
    if (entry.starts_with("GPU-") || entry.starts_with("MIG-")) {
      ++seen;
      continue;
    }
    if (!parse_integer(entry, 0, count - 1)) break;
    ++seen;
  }
  return seen;
}

struct Filter {
  const char* name;
  const std::optional<std::string>& value;
};

Gpus filtered(int count, const char* kind, std::initializer_list<Filter> filters) {
  Gpus gpus{count, kind, ""};
  for (const Filter& filter : filters) {
    if (!filter.value || gpus.count == 0) continue;
    gpus.count = visible(*filter.value, gpus.count);
    if (gpus.count == 0) {
      gpus.none_note = concat("this machine has ", counted(count, concat(kind, " device")), ", but ", filter.name, "='",
                              *filter.value, "' lets none through");
    }
  }
  return gpus;
}

}  // namespace

GpuVariables GpuVariables::from_environment() {
  const auto value = [](const char* name) -> std::optional<std::string> {
    const char* text = ::getenv(name);
    return text == nullptr ? std::nullopt : std::optional<std::string>(text);
  };
  return {value("CUDA_VISIBLE_DEVICES"), value("ROCR_VISIBLE_DEVICES"), value("HIP_VISIBLE_DEVICES")};
}

Gpus find_gpus(const GpuVariables& variables, const SystemRoots& roots) {
  if (const int count = nvidia_devices(roots); count > 0) {
    return filtered(count, "NVIDIA", {{"CUDA_VISIBLE_DEVICES", variables.cuda_visible_devices}});
  }
  if (const int count = amd_devices(roots); count > 0) {
    // HIP reads CUDA's variable if its own is not set.
    const bool own = variables.hip_visible_devices.has_value();
    return filtered(count, "AMD",
                    {{"ROCR_VISIBLE_DEVICES", variables.rocr_visible_devices},
                     {own ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES",
                      own ? variables.hip_visible_devices : variables.cuda_visible_devices}});
  }
  return {0, "",
          "looked for NVIDIA devices (/dev/nvidia*, /proc/driver/nvidia/gpus) and AMD devices (/dev/kfd with "
          "/sys/class/kfd) that may be used"};
}

int count_gpus(const GpuVariables& variables, const SystemRoots& roots) {
  const auto is_there = [](const std::string& path) { return ::access(path.c_str(), F_OK) == 0; };
  const bool driver = is_there(roots.dev + "/nvidiactl") || is_there(roots.proc + "/driver/nvidia/gpus") ||
                      is_there(roots.dev + "/kfd");
  return driver ? find_gpus(variables, roots).count : 0;
}

Result<int> resolve_nproc(const NprocSpec& nproc, const CpuSet& allowed, const Gpus& gpus) {
  using Kind = NprocSpec::Kind;
  if (nproc.kind == Kind::count) {
    if (nproc.count >= 1) return nproc.count;
    return fail(Errc::invalid_argument, concat("--nproc-per-node=", nproc.count, ": at least 1 worker is needed"));
  }
  if (nproc.kind == Kind::gpu && gpus.count == 0) {
    return fail(Errc::invalid_argument,
                concat("--nproc-per-node=gpu, but there is no GPU: ", gpus.none_note, "; use a number, or cpu"));
  }
  if (nproc.kind == Kind::gpu || (nproc.kind == Kind::automatic && gpus.count > 0)) return gpus.count;
  return std::max(1, allowed.count());
}

Result<int> resolve_nproc(const NprocSpec& nproc, const SystemRoots& roots) {
  using Kind = NprocSpec::Kind;
  Gpus gpus;
  if (nproc.kind == Kind::gpu || nproc.kind == Kind::automatic) {
    gpus = find_gpus(GpuVariables::from_environment(), roots);
  }
  CpuSet allowed;
  if (nproc.kind == Kind::cpu || (nproc.kind == Kind::automatic && gpus.count == 0)) {
    auto cpus = allowed_cpus();
    if (!cpus) return tl::unexpected(cpus.error());
    allowed = std::move(*cpus);
  }
  return resolve_nproc(nproc, allowed, gpus);
}

void limit_gpus(NprocSpec& nproc, int allocated, const Gpus& visible) {
  using Kind = NprocSpec::Kind;
  const bool wants_gpus = nproc.kind == Kind::gpu || nproc.kind == Kind::automatic;
  if (wants_gpus && visible.count > allocated) nproc = {Kind::count, allocated};
}

}  // namespace ddrun::topology
