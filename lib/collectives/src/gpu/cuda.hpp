#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "gpu/cuda_abi.hpp"
#include "gpu/shared_library.hpp"

namespace ddrun::collectives::cuda {

/// The CUDA driver's functions, loaded at run time, so that a build needs no CUDA and tests can substitute a library.
struct Driver {
  /// Loads the library named by DDRUN_CUDA_LIBRARY, else libcuda.so.1. Fails with `unsupported` without a working
  /// driver.
  [[nodiscard]] static Result<Driver> open();

  SharedLibrary library;
  int version = 0;  ///< the latest CUDA version it supports: 13000 is 13.0

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
  /// Success, or `unavailable` with describe().
  [[nodiscard]] Result<void> check(Status status, const std::string& what) const;
};

/// 13000 as "13.0".
[[nodiscard]] std::string format_version(int version);

/// Called periodically during a wait; an error ends the wait.
using CancelCheck = std::function<Result<void>()>;
/// For waits that end only with the work or at the deadline.
inline Result<void> never_cancel() { return {}; }

/// Polls `done`, such as the state of a GPU's work. Spins at first, as most waits are short, then sleeps up to half a
/// millisecond. Calls `cancel_check` about once a millisecond; an error from it ends the wait. `done` returns
/// Result<bool>. Fails with `timeout`, naming `what`.
template <class Done>
[[nodiscard]] Result<void> wait_until(Done done, const CancelCheck& cancel_check, Deadline deadline,
                                      const std::string& what) {
  using std::chrono::microseconds;
  constexpr microseconds spin_time{200};
  constexpr microseconds max_pause{500};
  constexpr microseconds cancel_check_interval{1000};
  const auto start = Clock::now();
  auto next_cancel_check = start + cancel_check_interval;
  microseconds pause{10};
  while (true) {
    if (TRY(done())) return {};
    const auto now = Clock::now();
    if (now >= deadline) return fail(Errc::timeout, what + " did not end in time");
    if (now >= next_cancel_check) {
      TRY(cancel_check());
      next_cancel_check = now + cancel_check_interval;
    }
    if (now - start < spin_time) continue;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, max_pause);
  }
}

/// A GPU of this process: its primary context and one stream, which executes everything in order. Arrays and events
/// keep it alive. Errors are `unavailable`, with the driver's text.
class Device {
 public:
  /// `ordinal` counts the GPUs visible to this process.
  [[nodiscard]] static Result<std::shared_ptr<Device>> open(Driver driver, int ordinal);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const Driver& driver() const { return driver_; }
  [[nodiscard]] Stream stream() const { return stream_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] int multiprocessors() const { return multiprocessors_; }
  /// Maximum shared memory of a block, in bytes.
  [[nodiscard]] int max_shared_memory() const { return max_shared_memory_; }

  /// Makes the context current on the calling thread. Required on each thread before other calls.
  [[nodiscard]] Result<void> use() const;
  [[nodiscard]] Result<std::size_t> free_memory() const;

  // Enqueued on the stream; they return at once. Host memory must not change until the work is done.
  [[nodiscard]] Result<void> copy_to_device(std::byte* to, const void* from, std::size_t bytes) const;
  [[nodiscard]] Result<void> copy_to_host(void* to, const std::byte* from, std::size_t bytes) const;
  [[nodiscard]] Result<void> set(std::byte* to, std::byte value, std::size_t bytes) const;

  /// Blocks until all work on the stream is done.
  [[nodiscard]] Result<void> wait(const CancelCheck& cancel_check, Deadline deadline, const std::string& what) const;
  /// After work that may never end: nothing is freed or waited for any more, as that work may still use it.
  void mark_unusable();
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

class Array {
 public:
  [[nodiscard]] static Result<Array> make(std::shared_ptr<Device> device, std::size_t bytes);
  Array() = default;
  Array(Array&& other) noexcept;
  Array& operator=(Array&& other) noexcept;
  ~Array();

  /// Not null after make().
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  std::shared_ptr<Device> device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// A point in a device's stream.
class Event {
 public:
  enum class Kind { timing, order };
  [[nodiscard]] static Result<Event> make(std::shared_ptr<Device> device, Kind kind);
  Event(Event&& other) noexcept;
  ~Event();

  /// Marks the point after all work enqueued so far.
  [[nodiscard]] Result<void> record() const;
  [[nodiscard]] Result<void> wait(const CancelCheck& cancel_check, Deadline deadline, const std::string& what) const;
  /// Time from `start` to this event. Both must have been waited for.
  [[nodiscard]] Result<double> microseconds_since(const Event& start) const;

 private:
  Event() = default;

  std::shared_ptr<Device> device_;
  EventHandle event_ = nullptr;
};

[[nodiscard]] inline Address address_of(const std::byte* data) { return reinterpret_cast<Address>(data); }

}  // namespace ddrun::collectives::cuda
