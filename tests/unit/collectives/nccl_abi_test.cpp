// Compares the redeclared CUDA and NCCL interfaces with the real headers, if available.

#include "gpu/nccl_abi.hpp"

#include "ddrun/test/catch.hpp"

#if __has_include(<nccl.h>) && __has_include(<cuda.h>)
#include <cuda.h>
#include <nccl.h>

#include <type_traits>

namespace {

namespace ours = ddrun::collectives::nccl;
namespace cuda = ddrun::collectives::cuda;

/// Same size and kind, so that arguments are passed alike.
template <class A, class B>
constexpr bool kAlike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>&& std::is_class_v<A> == std::is_class_v<B>;

template <class A, class B>
struct Same : std::false_type {};
template <class R, class... A, class S, class... B>
requires(sizeof...(A) == sizeof...(B)) struct Same<R(A...), S(B...)>
    : std::bool_constant<kAlike<R, S> && (kAlike<A, B> && ...)> {
};

#define SAME(mine, theirs) static_assert(Same<mine, std::remove_pointer_t<decltype(&(theirs))>>::value, #theirs)
SAME(ours::GetVersion, ncclGetVersion);
SAME(ours::GetUniqueId, ncclGetUniqueId);
SAME(ours::CommInitRankConfig, ncclCommInitRankConfig);
SAME(ours::CommFinalize, ncclCommFinalize);
SAME(ours::CommDestroy, ncclCommDestroy);
SAME(ours::CommAbort, ncclCommAbort);
SAME(ours::CommGetAsyncError, ncclCommGetAsyncError);
SAME(ours::AllReduce, ncclAllReduce);
SAME(ours::Broadcast, ncclBroadcast);
SAME(ours::Reduce, ncclReduce);
SAME(ours::AllGather, ncclAllGather);
SAME(ours::ReduceScatter, ncclReduceScatter);
SAME(ours::Send, ncclSend);
SAME(ours::Recv, ncclRecv);
SAME(ours::CommSplit, ncclCommSplit);
#if NCCL_VERSION_CODE >= 22300
SAME(ours::CommInitRankScalable, ncclCommInitRankScalable);
SAME(ours::MemAlloc, ncclMemAlloc);
SAME(ours::CommRegister, ncclCommRegister);
SAME(ours::CommDeregister, ncclCommDeregister);
#endif
static_assert(sizeof(ours::UniqueId) == sizeof(ncclUniqueId));
static_assert(offsetof(ours::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(ours::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(ours::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(ours::in_progress == ncclInProgress && ours::invalid_usage == ncclInvalidUsage);
static_assert(ours::version_code(2, 14, 0) == NCCL_VERSION(2, 14, 0));

SAME(cuda::DeviceGetUuid, cuDeviceGetUuid);
SAME(cuda::PrimaryRetain, cuDevicePrimaryCtxRetain);
SAME(cuda::MemGetInfo, cuMemGetInfo);
SAME(cuda::MemAlloc, cuMemAlloc);
SAME(cuda::CopyToDevice, cuMemcpyHtoDAsync);
SAME(cuda::CopyToHost, cuMemcpyDtoHAsync);
SAME(cuda::SetBytes, cuMemsetD8Async);
SAME(cuda::StreamCreate, cuStreamCreate);
SAME(cuda::EventCreate, cuEventCreate);
SAME(cuda::EventRecord, cuEventRecord);
SAME(cuda::EventQuery, cuEventQuery);
SAME(cuda::StreamQuery, cuStreamQuery);
SAME(cuda::CtxSetCurrent, cuCtxSetCurrent);
SAME(cuda::GraphExecDestroy, cuGraphExecDestroy);
SAME(cuda::EventElapsedTime, cuEventElapsedTime);
SAME(cuda::BeginCapture, cuStreamBeginCapture);
SAME(cuda::EndCapture, cuStreamEndCapture);
SAME(cuda::GraphInstantiate, cuGraphInstantiateWithFlags);
SAME(cuda::GraphLaunch, cuGraphLaunch);
SAME(cuda::ModuleLoadData, cuModuleLoadData);
SAME(cuda::ModuleGetFunction, cuModuleGetFunction);
SAME(cuda::FuncSetAttribute, cuFuncSetAttribute);
SAME(cuda::LaunchKernel, cuLaunchKernel);
static_assert(cuda::not_ready == CUDA_ERROR_NOT_READY && cuda::no_device == CUDA_ERROR_NO_DEVICE);
static_assert(cuda::invalid_image == CUDA_ERROR_INVALID_IMAGE && cuda::invalid_ptx == CUDA_ERROR_INVALID_PTX);
static_assert(cuda::no_binary_for_gpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(cuda::unsupported_ptx_version == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(cuda::stub_library == CUDA_ERROR_STUB_LIBRARY && cuda::out_of_memory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(cuda::non_blocking_stream == CU_STREAM_NON_BLOCKING &&
              cuda::event_without_time == CU_EVENT_DISABLE_TIMING);
static_assert(cuda::relaxed_capture == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(cuda::attribute_multiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(cuda::attribute_max_shared_memory == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
static_assert(cuda::attribute_dynamic_shared_memory == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);

}  // namespace

TEST_CASE("the redeclared interfaces match those of NCCL and CUDA") { SUCCEED("the compiler has compared them"); }
#else
TEST_CASE("the redeclared interfaces match those of NCCL and CUDA") { ddrun::test::skip("no nccl.h and cuda.h here"); }
#endif
