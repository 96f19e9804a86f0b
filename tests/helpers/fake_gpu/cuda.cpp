// A fake libcuda.so.1 with GPUs in host memory.

#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "../../../lib/collectives/cuda/sequence_walk.hpp"
#include "stream.hpp"

// The library's own declarations; what is defined here has the names that the driver gives them.
using namespace ddrun::collectives::cuda;
using ddrun::test::fake::note;
using ddrun::test::fake::Recipe;
using ddrun::test::fake::wanted;
namespace gpu = ddrun::collectives::gpu;

namespace ddrun::collectives::cuda {
struct EventState {
  StreamState* stream = nullptr;
  bool done = false;
  bool seen = true;
  std::chrono::steady_clock::time_point when;
};
struct GraphState {
  std::vector<Recipe> parts;
};
struct GraphExecState {
  std::vector<Recipe> parts;
};
struct FunctionState {
  std::string name;
};
struct ModuleState {
  std::map<std::string, FunctionState> functions;
};
}  // namespace ddrun::collectives::cuda

namespace {

constexpr std::uint64_t kThreads = 97;

std::size_t memory_bytes() { return std::stoull(wanted("memory", "17179869184")); }

template <class T>
T argument(void** arguments, int index) {
  T value;
  std::memcpy(&value, arguments[index], sizeof(value));
  return value;
}

/// A recipe for work that is done at once.
template <class Do>
Recipe at_once(Do act) {
  return [act] {
    return [act] {
      act();
      return true;
    };
  };
}

template <int Element>
Recipe walk_kernel(bool fills, void** arguments) {
  auto* const data = reinterpret_cast<std::uint8_t*>(argument<Address>(arguments, 0));
  const auto bytes = argument<std::uint64_t>(arguments, 1);
  const auto* const table = reinterpret_cast<const std::uint32_t*>(argument<Address>(arguments, 2));
  const gpu::Walk walk{argument<std::uint32_t>(arguments, 3), argument<std::uint32_t>(arguments, 4)};
  const auto first = argument<std::uint64_t>(arguments, 5);
  auto* const wrong = fills ? nullptr : reinterpret_cast<std::uint64_t*>(argument<Address>(arguments, 6));
  return at_once([=] {
    for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
      if (fills) gpu::fill_part<Element>(data, bytes, table, walk, first, thread, kThreads);
      else *wrong += gpu::count_wrong_part<Element>(data, bytes, table, walk, first, thread, kThreads);
    }
  });
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) Status

FAKE cuInit(unsigned) { return wanted("devices", "1") == "0" ? no_device : success; }
FAKE cuDriverGetVersion(int* version) { return *version = 13000, success; }
FAKE cuGetErrorName(Status status, const char** text) {
  *text = status == out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return success;
}
FAKE cuGetErrorString(Status, const char** text) { return *text = "as the test wants", success; }
FAKE cuDeviceGetCount(int* count) { return *count = std::stoi(wanted("devices", "1")), success; }
FAKE cuDeviceGet(DeviceId* device, int ordinal) { return *device = ordinal, success; }
FAKE cuDeviceGetName(char* name, int bytes, DeviceId) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(bytes));
  return success;
}
FAKE cuDeviceGetUuid_v2(Uuid* uuid, DeviceId device) {
  uuid->bytes.fill(static_cast<char>(device + 1));
  return success;
}
FAKE cuDeviceGetAttribute(int* value, int attribute, DeviceId) {
  *value = attribute == attribute_max_shared_memory ? 100 << 10 : 4;
  return success;
}
FAKE cuDevicePrimaryCtxRetain(Context* context, DeviceId) {
  static int any;
  *context = reinterpret_cast<Context>(&any);
  return success;
}
FAKE cuDevicePrimaryCtxRelease_v2(DeviceId) { return success; }
FAKE cuCtxSetCurrent(Context) { return success; }
FAKE cuMemGetInfo_v2(std::size_t* free, std::size_t* total) { return *free = *total = memory_bytes(), success; }
FAKE cuMemAlloc_v2(Address* memory, std::size_t bytes) {
  void* const got = bytes <= memory_bytes() ? ::operator new (bytes, std::align_val_t{4096}, std::nothrow) : nullptr;
  *memory = reinterpret_cast<Address>(got);
  return got != nullptr ? success : out_of_memory;
}
FAKE cuMemFree_v2(Address memory) {
  ::operator delete (reinterpret_cast<void*>(memory), std::align_val_t{4096});
  return success;
}
FAKE cuMemcpyHtoDAsync_v2(Address to, const void* from, std::size_t bytes, Stream stream) {
  stream->add(at_once([=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); }));
  return success;
}
FAKE cuMemcpyDtoHAsync_v2(void* to, Address from, std::size_t bytes, Stream stream) {
  stream->add(at_once([=] { std::memcpy(to, reinterpret_cast<const void*>(from), bytes); }));
  return success;
}
FAKE cuMemsetD8Async(Address to, unsigned char value, std::size_t bytes, Stream stream) {
  stream->add(at_once([=] { std::memset(reinterpret_cast<void*>(to), value, bytes); }));
  return success;
}
FAKE cuStreamCreate(Stream* stream, unsigned) { return *stream = new StreamState, success; }
FAKE cuStreamDestroy_v2(Stream stream) { return delete stream, success; }
FAKE cuStreamQuery(Stream stream) { return stream->run() ? success : not_ready; }
FAKE cuEventCreate(EventHandle* event, unsigned) { return *event = new EventState, success; }
FAKE cuEventDestroy_v2(EventHandle event) { return delete event, success; }
FAKE cuEventRecord(EventHandle event, Stream stream) {
  event->stream = stream;
  event->done = event->seen = false;
  stream->add(at_once([event] {
    event->done = true;
    event->when = std::chrono::steady_clock::now();
  }));
  return success;
}
FAKE cuEventQuery(EventHandle event) {
  if (!event->done && event->stream != nullptr) event->stream->run();
  if (event->done && !std::exchange(event->seen, true)) note("an event is waited for");
  return event->done ? success : not_ready;
}
FAKE cuEventElapsedTime(float* milliseconds, EventHandle start, EventHandle end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->when - start->when).count();
  return success;
}
FAKE cuStreamBeginCapture_v2(Stream stream, int) { return stream->capturing = true, success; }
FAKE cuStreamEndCapture(Stream stream, Graph* graph) {
  stream->capturing = false;
  *graph = new GraphState{std::move(stream->written_down)};
  stream->written_down.clear();
  return success;
}
FAKE cuGraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long) {
  *exec = new GraphExecState{graph->parts};
  return success;
}
FAKE cuGraphLaunch(GraphExec exec, Stream stream) {
  static int launches = 0;
  note("cuGraphLaunch");
  if (wanted("fail", "") == "cuGraphLaunch:" + std::to_string(++launches)) return out_of_memory;
  for (const Recipe& part : exec->parts) stream->add(part);
  return success;
}
FAKE cuGraphDestroy(Graph graph) { return delete graph, success; }
FAKE cuGraphExecDestroy(GraphExec exec) { return delete exec, success; }
FAKE cuModuleLoadData(Module* module, const void*) {
  note("cuModuleLoadData");
  *module = nullptr;
  if (const int refusal = std::stoi(wanted("kernels", "0")); refusal != 0) return refusal;
  return *module = new ModuleState, success;
}
FAKE cuModuleUnload(Module module) { return delete module, success; }
FAKE cuModuleGetFunction(Function* function, Module module, const char* name) {
  if (const int refusal = std::stoi(wanted("functions", "0")); refusal != 0) return refusal;
  *function = &module->functions[name];
  (*function)->name = name;
  return success;
}
FAKE cuFuncSetAttribute(Function, int, int) { return success; }
FAKE cuLaunchKernel(Function function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    Stream stream, void** arguments, void**) {
  const std::string& name = function->name;
  const bool fills = name.starts_with("ddrun_fill_");
  if (name.ends_with("_1")) stream->add(walk_kernel<1>(fills, arguments));
  else if (name.ends_with("_2")) stream->add(walk_kernel<2>(fills, arguments));
  else if (name.ends_with("_4")) stream->add(walk_kernel<4>(fills, arguments));
  else stream->add(walk_kernel<8>(fills, arguments));
  return success;
}
