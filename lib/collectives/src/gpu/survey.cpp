#include "gpu/survey.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <span>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "gpu/cuda.hpp"
#include "gpu/nccl_library.hpp"

namespace ddrun::collectives {

namespace {

constexpr char separator = '\x1e';
/// The first NCCL version that lets ranks share a GPU.
constexpr int sharing_version = nccl::version_code(2, 30, 0);

std::string uuid_of(const cuda::Driver& driver, int ordinal) {
  cuda::DeviceId device = 0;
  cuda::Uuid uuid{};
  if (driver.device_get(&device, ordinal) != cuda::success || driver.device_get_uuid(&uuid, device) != cuda::success) {
    return concat("GPU-", ordinal);
  }
  return concat("GPU-", in_hex(std::as_bytes(std::span(uuid.bytes))));
}

bool sharing_is_enabled() {
  const char* const value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value != nullptr && std::string_view(value) == "1";
}

/// Equal for ranks of one machine; the host name if /proc is not available.
const std::string& machine_of(const HostIdentity& host) {
  return host.memory_domain.empty() ? host.host : host.memory_domain;
}

}  // namespace

GpuSurvey GpuSurvey::of_this_process(bool thorough) {
  GpuSurvey survey;
  survey.probed = true;
  const auto driver = cuda::Driver::open();
  int count = 0;
  if (driver) {
    survey.driver = driver->version;
    survey.driver_info = driver->library.file();
    if (driver->device_get_count(&count) != cuda::success) count = 0;
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (count == 0 && visible != nullptr) survey.driver_info += concat(" with CUDA_VISIBLE_DEVICES=", visible);
    for (int i = 0; i < count; ++i) survey.devices.push_back(uuid_of(*driver, i));
  } else {
    survey.driver_info = driver.error().message;
  }
  if (count == 0 && !thorough) return survey;
  const auto library = nccl::Library::open();
  if (library) {
    survey.nccl = library->version;
    survey.nccl_info = library->library.file();
    survey.may_share = library->version >= sharing_version && sharing_is_enabled();
  } else {
    survey.nccl_info = library.error().message;
  }
  return survey;
}

std::string GpuSurvey::line() const {
  const auto plain = [](std::string words) {
    std::replace_if(
        words.begin(), words.end(), [](unsigned char c) { return c < ' '; }, ' ');
    return words;
  };
  return join({probed ? "1" : "0", std::to_string(driver), plain(driver_info), join(devices, ","), std::to_string(nccl),
               plain(nccl_info), may_share ? "1" : "0"},
              std::string(1, separator));
}

Result<GpuSurvey> GpuSurvey::parse(const std::string& line) {
  const std::vector<std::string> parts = split(line, separator);
  const auto bad = [&] { return fail(Errc::protocol, concat("not what a rank says of its GPUs: ", line)); };
  if (parts.size() != 7) return bad();
  const auto driver = parse_integer(parts[1], 0, 1'000'000);
  const auto nccl = parse_integer(parts[4], 0, 10'000'000);
  if (!driver || !nccl) return bad();
  GpuSurvey survey;
  survey.probed = parts[0] == "1";
  survey.driver = static_cast<int>(*driver);
  survey.driver_info = parts[2];
  if (!parts[3].empty()) survey.devices = split(parts[3], ',');
  survey.nccl = static_cast<int>(*nccl);
  survey.nccl_info = parts[5];
  survey.may_share = parts[6] == "1";
  return survey;
}

std::string GpuSurvey::describe() const {
  std::string words = driver_info;
  if (driver != 0) {
    words = concat("driver for CUDA ", cuda::format_version(driver), " (", driver_info, "), ", devices.size(),
                   devices.size() == 1 ? " GPU" : " GPUs");
  }
  if (nccl != 0) words += concat("; NCCL ", nccl::format_version(nccl), " (", nccl_info, ')');
  else if (!nccl_info.empty()) words += concat("; ", nccl_info);
  return words;
}

GpuPlan plan_gpus(const std::vector<GpuSurvey>& surveys, const std::vector<HostIdentity>& hosts) {
  const auto impossible = [&](std::size_t rank, const std::string& why) {
    GpuPlan plan;
    plan.problem = concat("rank ", rank, " on ", hosts[rank].host, ": ", why);
    return plan;
  };
  const bool may_share = std::ranges::all_of(surveys, &GpuSurvey::may_share);
  std::map<std::string, std::size_t> ranks_of_machine;
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> ranks_of_device;
  GpuPlan plan;
  for (std::size_t rank = 0; rank < surveys.size(); ++rank) {
    const GpuSurvey& survey = surveys[rank];
    if (survey.devices.empty() || survey.nccl == 0) return impossible(rank, survey.describe());
    if (survey.nccl != surveys[0].nccl) {
      return impossible(rank, concat("NCCL ", nccl::format_version(survey.nccl), ", rank 0 has ",
                                     nccl::format_version(surveys[0].nccl)));
    }
    const std::string& machine = machine_of(hosts[rank]);
    const std::size_t local_rank = ranks_of_machine[machine]++;
    const std::size_t count = survey.devices.size();
    if (local_rank >= count && count > 1 && !may_share) {
      return impossible(rank, concat("the machine has at least ", local_rank + 1, " ranks and only ", count, " GPUs"));
    }
    const std::size_t device = local_rank % count;
    std::vector<std::size_t>& sharing = ranks_of_device[{machine, survey.devices[device]}];
    sharing.push_back(rank);
    if (sharing.size() > 1 && !plan.shared()) {
      plan.one = static_cast<int>(sharing[0]);
      plan.other = static_cast<int>(rank);
    }
    plan.devices.push_back(static_cast<int>(device));
  }
  plan.ranks_on_device.resize(surveys.size());
  for (const auto& [device, sharing] : ranks_of_device) {
    for (const std::size_t rank : sharing) plan.ranks_on_device[rank] = static_cast<int>(sharing.size());
  }
  if (plan.shared() && !may_share) {
    plan.problem =
        concat("ranks ", plan.one, " and ", plan.other, " are on one GPU of ",
               hosts[static_cast<std::size_t>(plan.one)].host, ", which NCCL ", nccl::format_version(surveys[0].nccl),
               surveys[0].nccl >= sharing_version ? " allows only with NCCL_MULTI_RANK_GPU_ENABLE=1"
                                                  : " refuses; from 2.30 on NCCL_MULTI_RANK_GPU_ENABLE=1 "
                                                    "allows it");
  }
  return plan;
}

}  // namespace ddrun::collectives
