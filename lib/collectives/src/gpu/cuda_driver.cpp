#include "gpu/cuda_driver.hpp"

#include <cstdlib>

#include "ddrun/base/text.hpp"

namespace ddrun::collectives::cuda {

namespace {

/// Name of the first function that is missing; null if all are there. The driver's names are those that its own header
/// gives to the functions as they are declared in cuda_abi.hpp.
const char* fill(Driver& to) {
  const char* missing = nullptr;
  const auto need = [&](const char* name, auto*& function) {
    if (!take(to.library, name, function) && missing == nullptr) missing = name;
  };
  need("cuInit", to.init);
  need("cuDriverGetVersion", to.driver_get_version);
  need("cuGetErrorName", to.get_error_name);
  need("cuGetErrorString", to.get_error_string);
  need("cuDeviceGetCount", to.device_get_count);
  need("cuDeviceGet", to.device_get);
  need("cuDeviceGetName", to.device_get_name);
  // The later form tells the parts of a divided GPU apart.
  if (!take(to.library, "cuDeviceGetUuid_v2", to.device_get_uuid)) need("cuDeviceGetUuid", to.device_get_uuid);
  need("cuDeviceGetAttribute", to.device_get_attribute);
  need("cuDevicePrimaryCtxRetain", to.primary_retain);
  need("cuDevicePrimaryCtxRelease_v2", to.primary_release);
  need("cuCtxSetCurrent", to.ctx_set_current);
  need("cuMemGetInfo_v2", to.mem_get_info);
  need("cuMemAlloc_v2", to.mem_alloc);
  need("cuMemFree_v2", to.mem_free);
  need("cuMemcpyHtoDAsync_v2", to.copy_to_device);
  need("cuMemcpyDtoHAsync_v2", to.copy_to_host);
  need("cuMemcpyDtoDAsync_v2", to.copy_on_device);
  need("cuMemsetD8Async", to.set_bytes);
  need("cuStreamCreate", to.stream_create);
  need("cuStreamDestroy_v2", to.stream_destroy);
  need("cuStreamQuery", to.stream_query);
  need("cuEventCreate", to.event_create);
  need("cuEventDestroy_v2", to.event_destroy);
  need("cuEventRecord", to.event_record);
  need("cuEventQuery", to.event_query);
  need("cuEventElapsedTime", to.event_elapsed_time);
  need("cuStreamBeginCapture_v2", to.begin_capture);
  need("cuStreamEndCapture", to.end_capture);
  (void)take(to.library, "cuGraphInstantiateWithFlags", to.graph_instantiate);
  need("cuGraphLaunch", to.graph_launch);
  need("cuGraphDestroy", to.graph_destroy);
  need("cuGraphExecDestroy", to.graph_exec_destroy);
  need("cuModuleLoadData", to.module_load_data);
  need("cuModuleUnload", to.module_unload);
  need("cuModuleGetFunction", to.module_get_function);
  need("cuFuncSetAttribute", to.func_set_attribute);
  need("cuLaunchKernel", to.launch_kernel);
  return missing;
}

}  // namespace

std::string version_in_words(int version) { return concat(version / 1000, '.', version % 1000 / 10); }

Result<Driver> Driver::open() {
  const char* const chosen = std::getenv("DDRUN_CUDA_LIBRARY");
  auto library = SharedLibrary::open(chosen != nullptr && *chosen != '\0' ? chosen : "libcuda.so.1");
  if (!library) return fail(Errc::unsupported, concat("no NVIDIA driver: ", library.error().message));
  Driver driver{std::move(*library)};
  const char* const missing = fill(driver);
  if (missing != nullptr) {
    return fail(Errc::unsupported,
                concat(driver.library.file(), " has no ", missing, ": the NVIDIA driver is too old for ddrun"));
  }
  (void)driver.driver_get_version(&driver.version);
  const Status status = driver.init(0);
  if (status == kStubLibrary) {
    return fail(Errc::unsupported, concat("no NVIDIA driver: ", driver.library.file(), " is the toolkit's stub"));
  }
  if (status != kSuccess && status != kNoDevice) {
    return fail(Errc::unsupported, driver.in_words(concat(driver.library.file(), ": cuInit"), status));
  }
  return driver;
}

std::string Driver::in_words(const std::string& what, Status status) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(status, &name) != kSuccess || name == nullptr) return concat(what, ": error ", status);
  if (get_error_string(status, &text) != kSuccess || text == nullptr) return concat(what, ": ", name);
  return concat(what, ": ", text, " (", name, ')');
}

Result<void> Driver::check(Status status, const std::string& what) const {
  if (status == kSuccess) return {};
  return fail(Errc::unavailable, in_words(what, status));
}

}  // namespace ddrun::collectives::cuda
