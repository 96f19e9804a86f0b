#pragma once

// The parts of the CUDA driver's C interface (libcuda.so.1) that are used here, redeclared so that a build needs no
// toolkit. The driver's ABI is stable: a changed function gets a new name (_v2).
// tests/unit/collectives/nccl_abi_test.cpp compares the declarations with cuda.h if available.

#include <array>
#include <cstddef>

namespace ddrun::collectives::cuda {

struct ContextState;
struct StreamState;
struct EventState;
struct GraphState;
struct GraphExecState;
struct ModuleState;
struct FunctionState;
using Context = ContextState*;       ///< CUcontext
using Stream = StreamState*;         ///< CUstream, which is cudaStream_t
using EventHandle = EventState*;     ///< CUevent
using Graph = GraphState*;           ///< CUgraph
using GraphExec = GraphExecState*;   ///< CUgraphExec
using Module = ModuleState*;         ///< CUmodule
using Function = FunctionState*;     ///< CUfunction
using DeviceId = int;                ///< CUdevice
using Address = unsigned long long;  ///< CUdeviceptr

struct Uuid {
  std::array<char, 16> bytes;
};

/// CUresult.
using Status = int;
inline constexpr Status success = 0;
inline constexpr Status out_of_memory = 2;
inline constexpr Status stub_library = 34;
inline constexpr Status no_device = 100;
inline constexpr Status invalid_image = 200;
inline constexpr Status no_binary_for_gpu = 209;
inline constexpr Status invalid_ptx = 218;
inline constexpr Status unsupported_ptx_version = 222;
inline constexpr Status not_ready = 600;

// CUstream_flags, CUevent_flags, CUstreamCaptureMode
inline constexpr unsigned non_blocking_stream = 1;
inline constexpr unsigned event_without_time = 2;
inline constexpr int relaxed_capture = 2;
// CUdevice_attribute
inline constexpr int attribute_multiprocessors = 16;
inline constexpr int attribute_max_shared_memory = 97;  ///< bytes per block, with opt-in
// CUfunction_attribute
inline constexpr int attribute_dynamic_shared_memory = 8;

extern "C" {
using Init = Status(unsigned flags);
using DriverGetVersion = Status(int* version);
using GetErrorName = Status(Status status, const char** text);
using GetErrorString = Status(Status status, const char** text);
using DeviceGetCount = Status(int* count);
using DeviceGet = Status(DeviceId* device, int ordinal);
using DeviceGetName = Status(char* name, int bytes, DeviceId device);
using DeviceGetUuid = Status(Uuid* uuid, DeviceId device);
using DeviceGetAttribute = Status(int* value, int attribute, DeviceId device);
using PrimaryRetain = Status(Context* context, DeviceId device);
using PrimaryRelease = Status(DeviceId device);
using CtxSetCurrent = Status(Context context);
using MemGetInfo = Status(std::size_t* free, std::size_t* total);
using MemAlloc = Status(Address* memory, std::size_t bytes);
using MemFree = Status(Address memory);
using CopyToDevice = Status(Address to, const void* from, std::size_t bytes, Stream stream);
using CopyToHost = Status(void* to, Address from, std::size_t bytes, Stream stream);
using SetBytes = Status(Address to, unsigned char value, std::size_t bytes, Stream stream);
using StreamCreate = Status(Stream* stream, unsigned flags);
using StreamDestroy = Status(Stream stream);
using StreamQuery = Status(Stream stream);
using EventCreate = Status(EventHandle* event, unsigned flags);
using EventDestroy = Status(EventHandle event);
using EventRecord = Status(EventHandle event, Stream stream);
using EventQuery = Status(EventHandle event);
using EventElapsedTime = Status(float* milliseconds, EventHandle start, EventHandle end);
using BeginCapture = Status(Stream stream, int mode);
using EndCapture = Status(Stream stream, Graph* graph);
using GraphInstantiate = Status(GraphExec* exec, Graph graph, unsigned long long flags);
using GraphLaunch = Status(GraphExec exec, Stream stream);
using GraphDestroy = Status(Graph graph);
using GraphExecDestroy = Status(GraphExec exec);
using ModuleLoadData = Status(Module* module, const void* image);
using ModuleUnload = Status(Module module);
using ModuleGetFunction = Status(Function* function, Module module, const char* name);
using FuncSetAttribute = Status(Function function, int attribute, int value);
using LaunchKernel = Status(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream, void** arguments,
                            void** extra);
}

}  // namespace ddrun::collectives::cuda
