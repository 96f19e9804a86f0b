#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "gpu/cuda_abi.hpp"
#include "gpu/shared_library.hpp"

namespace ddrun::collectives::cuda {

/// The driver's functions, found when the program runs. All of its calls go through this table, so that a build needs
/// no CUDA and a test can put another library in its place.
struct Driver {
  /// From the library that DDRUN_CUDA_LIBRARY names, else libcuda.so.1. Fails with `unsupported` where there is no
  /// driver, or none that works.
  [[nodiscard]] static Result<Driver> open();

  SharedLibrary library;
  int version = 0;  ///< the latest CUDA it can do: 13000 is 13.0

  Init* init = nullptr;
  DriverGetVersion* driver_get_version = nullptr;
  GetErrorName* get_error_name = nullptr;
  GetErrorString* get_error_string = nullptr;
  DeviceGetCount* device_get_count = nullptr;
  DeviceGet* device_get = nullptr;
  DeviceGetName* device_get_name = nullptr;
  DeviceGetUuid* device_get_uuid = nullptr;
  DeviceGetAttribute* device_get_attribute = nullptr;
  PrimaryRetain* primary_retain = nullptr;
  PrimaryRelease* primary_release = nullptr;
  CtxSetCurrent* ctx_set_current = nullptr;
  MemGetInfo* mem_get_info = nullptr;
  MemAlloc* mem_alloc = nullptr;
  MemFree* mem_free = nullptr;
  CopyToDevice* copy_to_device = nullptr;
  CopyToHost* copy_to_host = nullptr;
  SetBytes* set_bytes = nullptr;
  StreamCreate* stream_create = nullptr;
  StreamDestroy* stream_destroy = nullptr;
  StreamQuery* stream_query = nullptr;
  EventCreate* event_create = nullptr;
  EventDestroy* event_destroy = nullptr;
  EventRecord* event_record = nullptr;
  EventQuery* event_query = nullptr;
  EventElapsedTime* event_elapsed_time = nullptr;
  BeginCapture* begin_capture = nullptr;
  EndCapture* end_capture = nullptr;
  GraphInstantiate* graph_instantiate = nullptr;  ///< null before CUDA 11.4
  GraphLaunch* graph_launch = nullptr;
  GraphDestroy* graph_destroy = nullptr;
  GraphExecDestroy* graph_exec_destroy = nullptr;
  ModuleLoadData* module_load_data = nullptr;
  ModuleUnload* module_unload = nullptr;
  ModuleGetFunction* module_get_function = nullptr;
  FuncSetAttribute* func_set_attribute = nullptr;
  LaunchKernel* launch_kernel = nullptr;

  /// "cuMemAlloc of 4096 bytes: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"
  [[nodiscard]] std::string describe(const std::string& what, Status status) const;
  /// Success, or `unavailable` with those words.
  [[nodiscard]] Result<void> check(Status status, const std::string& what) const;
};

/// 13000 as "13.0".
[[nodiscard]] std::string format_version(int version);

/// Asked now and then during a wait; a failure ends it.
using CancelCheck = std::function<Result<void>()>;
/// None: the wait ends with the work or at the deadline.
inline Result<void> never_cancel() { return {}; }

/// One GPU as this process uses it: its primary context and a stream, on which everything happens in order. What it
/// gives out must be gone before it. Failures are `unavailable`, in the driver's words.
class Device {
 public:
  /// `ordinal` among the GPUs that this process may use.
  [[nodiscard]] static Result<std::shared_ptr<Device>> open(Driver driver, int ordinal);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const Driver& driver() const { return driver_; }
  [[nodiscard]] Stream stream() const { return stream_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  /// Bytes of shared memory that a block may ask for.
  [[nodiscard]] int max_shared_memory() const { return max_shared_memory_; }

  /// Makes it the calling thread's. To be called before anything else, on whatever thread that happens.
  [[nodiscard]] Result<void> use() const;
  /// Bytes that are free.
  [[nodiscard]] Result<std::size_t> free_memory() const;

  // On the stream; they return before it is done. Host memory must stay as it is until then.
  [[nodiscard]] Result<void> copy_to_device(std::byte* to, const void* from, std::size_t bytes) const;
  [[nodiscard]] Result<void> copy_to_host(void* to, const std::byte* from, std::size_t bytes) const;
  [[nodiscard]] Result<void> set(std::byte* to, std::byte value, std::size_t bytes) const;

  /// Until everything on the stream is done.
  [[nodiscard]] Result<void> wait(const CancelCheck& cancel_check, Deadline deadline, const std::string& what) const;
  /// Gives up: nothing is freed or waited for any more, as work that never ends may still use it.
  void mark_unusable() { unusable_ = true; }
  [[nodiscard]] bool is_unusable() const { return unusable_; }

 private:
  explicit Device(Driver driver) : driver_(std::move(driver)) {}

  Driver driver_;
  DeviceId device_ = -1;
  Context context_ = nullptr;
  Stream stream_ = nullptr;
  std::string name_;
  int multiprocessors_ = 1;
  int max_shared_memory_ = 0;
  bool unusable_ = false;
};

/// An array of a device.
class Array {
 public:
  [[nodiscard]] static Result<Array> make(std::shared_ptr<Device> device, std::size_t bytes);
  Array() = default;
  Array(Array&& other) noexcept;
  Array& operator=(Array&& other) noexcept;
  ~Array();

  /// Never null in one that was made.
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A place in a device's stream.
class Event {
 public:
  enum class Kind { timing, order };
  [[nodiscard]] static Result<Event> make(std::shared_ptr<Device> device, Kind kind);
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  /// The place is here: after all that is on the stream now.
  [[nodiscard]] Result<void> record() const;
  [[nodiscard]] Result<void> wait(const CancelCheck& cancel_check, Deadline deadline, const std::string& what) const;
  /// From `start` to this; both have been waited for.
  [[nodiscard]] Result<double> microseconds_since(const Event& start) const;

 private:
  Event() = default;

  std::shared_ptr<Device> device_;
  EventHandle event_ = nullptr;
};

[[nodiscard]] inline Address address_of(const std::byte* data) { return reinterpret_cast<Address>(data); }

}  // namespace ddrun::collectives::cuda
