#pragma once

// The parts of NCCL's C interface that are used here, redeclared so that every build has the back end and none needs
// nccl.h. Values and layouts are unchanged since the versions named; tests/unit/collectives/nccl_abi_test.cpp compares
// them with nccl.h if available.

#include <array>
#include <climits>
#include <cstddef>

#include "gpu/cuda_abi.hpp"

namespace ddrun::collectives::nccl {

struct CommunicatorState;
using Comm = CommunicatorState*;  ///< ncclComm_t

/// ncclUniqueId: address and secret of a group's bootstrap.
struct UniqueId {
  std::array<char, 128> internal;
};

/// ncclResult_t; other versions have further values.
using Status = int;
inline constexpr Status success = 0;
inline constexpr Status unhandled_cuda_error = 1;
inline constexpr Status invalid_usage = 5;
inline constexpr Status in_progress = 7;

/// ncclConfig_t of 2.14, the first with `blocking`. From size and version a later library knows which fields are set
/// and uses defaults for the rest.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = INT_MIN;
};

/// ncclDataType_t and ncclRedOp_t; DataType and ReduceOp have the same values.
using Type = int;
using Op = int;

/// NCCL_VERSION_CODE: 2.28.9 is 22809; up to 2.8 it was 2809.
constexpr int version_code(int major, int minor, int patch) { return major * 10000 + minor * 100 + patch; }

extern "C" {
using GetVersion = Status(int* version);
using GetUniqueId = Status(UniqueId* id);
using CommInitRankConfig = Status(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
using CommInitRankScalable = Status(Comm* comm, int ranks, int rank, int ids, UniqueId* id, Config* config);
using CommSplit = Status(Comm comm, int color, int key, Comm* split, Config* config);
using CommFinalize = Status(Comm comm);
using CommDestroy = Status(Comm comm);
using CommAbort = Status(Comm comm);
using CommGetAsyncError = Status(Comm comm, Status* error);
using GetErrorString = const char*(Status status);
using GetLastError = const char*(Comm comm);
using MemAlloc = Status(void** memory, std::size_t bytes);
using MemFree = Status(void* memory);
using CommRegister = Status(Comm comm, void* memory, std::size_t bytes, void** handle);
using CommDeregister = Status(Comm comm, void* handle);
using AllReduce = Status(const void* in, void* out, std::size_t count, Type type, Op op, Comm comm,
                         cuda::Stream stream);
using Broadcast = Status(const void* in, void* out, std::size_t count, Type type, int root, Comm comm,
                         cuda::Stream stream);
using Reduce = Status(const void* in, void* out, std::size_t count, Type type, Op op, int root, Comm comm,
                      cuda::Stream stream);
using AllGather = Status(const void* in, void* out, std::size_t count, Type type, Comm comm, cuda::Stream stream);
using ReduceScatter = Status(const void* in, void* out, std::size_t count, Type type, Op op, Comm comm,
                             cuda::Stream stream);
using Send = Status(const void* in, std::size_t count, Type type, int peer, Comm comm, cuda::Stream stream);
using Recv = Status(void* out, std::size_t count, Type type, int peer, Comm comm, cuda::Stream stream);
using GroupStart = Status();
using GroupEnd = Status();
}

}  // namespace ddrun::collectives::nccl
