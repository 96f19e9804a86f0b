#include "ddrun/topology/nproc.hpp"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <string_view>

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

bool has_uuid(std::string_view device) { return device.starts_with("GPU-") || device.starts_with("MIG-"); }

/// The number of `count` devices in a list such as "0,1", "GPU-8932f937,1" or "". As in CUDA, the list ends at the
/// first invalid entry.
int visible(const std::string& list, int count) {
  int seen = 0;
  for (const std::string& part : split(list, ',')) {
    const std::string_view entry = trim(part);
    if (has_uuid(entry)) {
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
  if (nproc.kind == Kind::cpu || (nproc.kind == Kind::automatic && gpus.count == 0)) allowed = TRY(allowed_cpus());
  return resolve_nproc(nproc, allowed, gpus);
}

void limit_gpus(NprocSpec& nproc, int allocated, const Gpus& visible) {
  using Kind = NprocSpec::Kind;
  const bool wants_gpus = nproc.kind == Kind::gpu || nproc.kind == Kind::automatic;
  if (wants_gpus && visible.count > allocated) nproc = {Kind::count, allocated};
}

namespace {

constexpr int max_devices = 100'000;

/// The devices that an item of a list names: "3", "0-3" or a name; none if there is no such.
std::vector<std::string> devices_of(std::string_view item, const std::vector<std::string>& visible) {
  const std::size_t dash = item.find('-');
  const auto first = parse_integer(item.substr(0, dash), 0, max_devices);
  const auto last = dash == std::string_view::npos ? first : parse_integer(item.substr(dash + 1), 0, max_devices);
  if (first && last && *first <= *last && *last < static_cast<int>(visible.size()))
    return {visible.begin() + *first, visible.begin() + *last + 1};
  const bool is_name = !first && std::ranges::find(visible, item) != visible.end();
  return is_name ? std::vector{std::string(item)} : std::vector<std::string>();
}

}  // namespace

VisibleDevices visible_devices(const Environment& environment) {
  const auto hip = environment.find("HIP_VISIBLE_DEVICES");
  VisibleDevices devices;
  devices.by_hip = hip && !hip->empty();
  const auto list = devices.by_hip ? hip : environment.find("CUDA_VISIBLE_DEVICES");
  if (!list) {
    const Gpus gpus = find_gpus(GpuVariables::from_environment());
    devices.by_hip = gpus.kind == "AMD";
    for (int device = 0; device < gpus.count; ++device) devices.names.push_back(std::to_string(device));
    return devices;
  }
  // As in CUDA, the list ends at the first invalid entry.
  for (const std::string& device : split(*list, ',')) {
    if (!has_uuid(trim(device)) && !parse_integer(trim(device), 0, max_devices)) break;
    devices.names.emplace_back(trim(device));
  }
  return devices;
}

Result<std::vector<std::optional<std::vector<std::string>>>> divide_gpus(const std::vector<GpuRequest>& requests,
                                                                         const std::vector<std::string>& visible) {
  std::vector<std::optional<std::vector<std::string>>> shares(requests.size());
  const std::string present =
      concat("this machine has ", counted(static_cast<long long>(visible.size()), "visible device"),
             visible.empty() ? "" : concat(" (", join(visible, ","), ")"));
  std::vector<std::string> asked, left = visible;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& [text, role] = requests[i];
    if (text.empty()) continue;
    asked.push_back(concat("--gpus=", text, role.empty() ? "" : " of ", role));
    shares[i].emplace();
    if (parse_integer(text, 0, max_devices)) continue;
    for (const std::string& item : split(text, ',')) {
      const auto devices = devices_of(trim(item), visible);
      if (devices.empty())
        return fail(Errc::invalid_argument, concat(asked.back(), ": '", item, "' is no device; ", present));
      for (const std::string& device : devices) {
        if (std::ranges::find(*shares[i], device) == shares[i]->end()) shares[i]->push_back(device);
        std::erase(left, device);
      }
    }
  }
  auto next = left.begin();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto count = parse_integer(requests[i].text, 0, max_devices).value_or(0);
    if (count > left.end() - next) {
      return fail(Errc::invalid_argument, concat(join(asked, ", "), ": ", present));
    }
    if (count > 0) shares[i]->assign(next, next + count);
    next += count;
  }
  return shares;
}

}  // namespace ddrun::topology
