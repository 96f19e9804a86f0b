#pragma once

#include <string>

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
  CopyOnDevice* copy_on_device = nullptr;
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
  [[nodiscard]] std::string in_words(const std::string& what, Status status) const;
  /// Success, or `unavailable` with those words.
  [[nodiscard]] Result<void> check(Status status, const std::string& what) const;
};

/// 13000 as "13.0".
[[nodiscard]] std::string version_in_words(int version);

}  // namespace ddrun::collectives::cuda
