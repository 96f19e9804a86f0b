#include "gpu/cuda.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <utility>

#include "ddrun/base/text.hpp"
#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

namespace {

std::atomic<bool> any_unusable{false};

}  // namespace

bool has_stuck_gpu() { return any_unusable; }

}  // namespace ddrun::collectives

namespace ddrun::collectives::cuda {

namespace {

/// Returns the name of the first missing function, or null. The names are those to which cuda.h maps the functions
/// declared in cuda_abi.hpp.
const char* fill(Driver& to) {
  RequiredFunctions require{to.library};
  require("cuInit", to.init);
  require("cuDriverGetVersion", to.driver_get_version);
  require("cuGetErrorName", to.get_error_name);
  require("cuGetErrorString", to.get_error_string);
  require("cuDeviceGetCount", to.device_get_count);
  require("cuDeviceGet", to.device_get);
  require("cuDeviceGetName", to.device_get_name);
  // The _v2 form distinguishes the MIG instances of a GPU.
  if (!load(to.library, "cuDeviceGetUuid_v2", to.device_get_uuid)) require("cuDeviceGetUuid", to.device_get_uuid);
  require("cuDeviceGetAttribute", to.device_get_attribute);
  require("cuDevicePrimaryCtxRetain", to.primary_retain);
  require("cuDevicePrimaryCtxRelease_v2", to.primary_release);
  require("cuCtxSetCurrent", to.ctx_set_current);
  require("cuMemGetInfo_v2", to.mem_get_info);
  require("cuMemAlloc_v2", to.mem_alloc);
  require("cuMemFree_v2", to.mem_free);
  require("cuMemcpyHtoDAsync_v2", to.copy_to_device);
  require("cuMemcpyDtoHAsync_v2", to.copy_to_host);
  require("cuMemsetD8Async", to.set_bytes);
  require("cuStreamCreate", to.stream_create);
  require("cuStreamDestroy_v2", to.stream_destroy);
  require("cuStreamQuery", to.stream_query);
  require("cuEventCreate", to.event_create);
  require("cuEventDestroy_v2", to.event_destroy);
  require("cuEventRecord", to.event_record);
  require("cuEventQuery", to.event_query);
  require("cuEventElapsedTime", to.event_elapsed_time);
  require("cuStreamBeginCapture_v2", to.begin_capture);
  require("cuStreamEndCapture", to.end_capture);
  (void)load(to.library, "cuGraphInstantiateWithFlags", to.graph_instantiate);
  require("cuGraphLaunch", to.graph_launch);
  require("cuGraphDestroy", to.graph_destroy);
  require("cuGraphExecDestroy", to.graph_exec_destroy);
  require("cuModuleLoadData", to.module_load_data);
  require("cuModuleUnload", to.module_unload);
  require("cuModuleGetFunction", to.module_get_function);
  require("cuFuncSetAttribute", to.func_set_attribute);
  require("cuLaunchKernel", to.launch_kernel);
  return require.missing;
}

}  // namespace

std::string format_version(int version) { return concat(version / 1000, '.', version % 1000 / 10); }

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
  if (status == stub_library) {
    return fail(Errc::unsupported, concat("no NVIDIA driver: ", driver.library.file(), " is the toolkit's stub"));
  }
  if (status != success && status != no_device) {
    return fail(Errc::unsupported, driver.describe(concat(driver.library.file(), ": cuInit"), status));
  }
  return driver;
}

std::string Driver::describe(const std::string& what, Status status) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(status, &name) != success || name == nullptr) return concat(what, ": error ", status);
  if (get_error_string(status, &text) != success || text == nullptr) return concat(what, ": ", name);
  return concat(what, ": ", text, " (", name, ')');
}

Result<void> Driver::check(Status status, const std::string& what) const {
  if (status == success) return {};
  return fail(Errc::unavailable, describe(what, status));
}

namespace {

Result<bool> is_complete(const Driver& driver, Status status, const std::string& what) {
  if (status == not_ready) return false;
  TRY(driver.check(status, what));
  return true;
}

}  // namespace

Result<std::shared_ptr<Device>> Device::open(Driver driver, int ordinal) {
  std::shared_ptr<Device> made(new Device(std::move(driver)));
  const Driver& d = made->driver_;
  const std::string what = concat("GPU ", ordinal);
  TRY(d.check(d.device_get(&made->device_, ordinal), what));
  std::array<char, 128> name{};
  if (d.device_get_name(name.data(), static_cast<int>(name.size()) - 1, made->device_) == success) {
    made->name_ = name.data();
  }
  (void)d.device_get_attribute(&made->multiprocessors_, attribute_multiprocessors, made->device_);
  (void)d.device_get_attribute(&made->max_shared_memory_, attribute_max_shared_memory, made->device_);
  // NCCL uses the primary context too.
  if (auto done = d.check(d.primary_retain(&made->context_, made->device_), what); !done) {
    made->context_ = nullptr;
    return tl::unexpected(done.error());
  }
  TRY(made->use());
  const Status status = d.stream_create(&made->stream_, non_blocking_stream);
  TRY(d.check(status, "cuStreamCreate"));
  return made;
}

Device::~Device() {
  if (context_ == nullptr || unusable_) return;
  if (use() && stream_ != nullptr) (void)driver_.stream_destroy(stream_);
  (void)driver_.primary_release(device_);
}

void Device::mark_unusable() { unusable_ = any_unusable = true; }

Result<void> Device::use() const { return driver_.check(driver_.ctx_set_current(context_), "cuCtxSetCurrent"); }

Result<std::size_t> Device::free_memory() const {
  std::size_t free = 0;
  std::size_t total = 0;
  TRY(driver_.check(driver_.mem_get_info(&free, &total), "cuMemGetInfo"));
  return free;
}

Result<void> Device::copy_to_device(std::byte* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  return driver_.check(driver_.copy_to_device(address_of(to), from, bytes, stream_), "cuMemcpyHtoDAsync");
}

Result<void> Device::copy_to_host(void* to, const std::byte* from, std::size_t bytes) const {
  if (bytes == 0) return {};
  return driver_.check(driver_.copy_to_host(to, address_of(from), bytes, stream_), "cuMemcpyDtoHAsync");
}

Result<void> Device::set(std::byte* to, std::byte value, std::size_t bytes) const {
  if (bytes == 0) return {};
  const auto byte = static_cast<unsigned char>(value);
  return driver_.check(driver_.set_bytes(address_of(to), byte, bytes, stream_), "cuMemsetD8Async");
}

Result<void> Device::wait(const CancelCheck& cancel_check, Deadline deadline, const std::string& what) const {
  return wait_until([&] { return is_complete(driver_, driver_.stream_query(stream_), what); }, cancel_check, deadline,
                    what);
}

Result<Array> Array::make(std::shared_ptr<Device> device, std::size_t bytes) {
  Address address = 0;
  const Driver& driver = device->driver();
  const std::size_t some = bytes == 0 ? 1 : bytes;
  TRY(driver.check(driver.mem_alloc(&address, some), concat("cuMemAlloc of ", some, " bytes")));
  Array array;
  array.device_ = std::move(device);
  array.data_ = reinterpret_cast<std::byte*>(address);
  array.bytes_ = bytes;
  return array;
}

Array::Array(Array&& other) noexcept
    : device_(std::move(other.device_)), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

Array& Array::operator=(Array&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Array::~Array() {
  if (data_ == nullptr || device_->is_unusable()) return;
  if (device_->use()) (void)device_->driver().mem_free(address_of(data_));
}

Result<Event> Event::make(std::shared_ptr<Device> device, Kind kind) {
  Event made;
  const Driver& driver = device->driver();
  const Status status = driver.event_create(&made.event_, kind == Kind::timing ? 0 : event_without_time);
  TRY(driver.check(status, "cuEventCreate"));
  made.device_ = std::move(device);
  return made;
}

Event::Event(Event&& other) noexcept
    : device_(std::move(other.device_)), event_(std::exchange(other.event_, nullptr)) {}

Event::~Event() {
  if (event_ == nullptr || device_->is_unusable()) return;
  if (device_->use()) (void)device_->driver().event_destroy(event_);
}

Result<void> Event::record() const {
  const Driver& driver = device_->driver();
  return driver.check(driver.event_record(event_, device_->stream()), "cuEventRecord");
}

Result<void> Event::wait(const CancelCheck& cancel_check, Deadline deadline, const std::string& what) const {
  const Driver& driver = device_->driver();
  return wait_until([&] { return is_complete(driver, driver.event_query(event_), what); }, cancel_check, deadline,
                    what);
}

Result<double> Event::microseconds_since(const Event& start) const {
  const Driver& driver = device_->driver();
  float milliseconds = 0;
  const Status status = driver.event_elapsed_time(&milliseconds, start.event_, event_);
  TRY(driver.check(status, "cuEventElapsedTime"));
  return static_cast<double>(milliseconds) * 1e3;
}

}  // namespace ddrun::collectives::cuda
