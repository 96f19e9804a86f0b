#pragma once

#include <string>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "gpu/nccl_abi.hpp"
#include "gpu/shared_library.hpp"

namespace ddrun::collectives::nccl {

/// NCCL's functions, loaded at run time.
struct Library {
  /// Loads the file named by DDRUN_NCCL_LIBRARY, else libnccl.so.2, also from Python packages. Fails with `unsupported`
  /// if it is missing or too old, naming the missing function and the library's version.
  [[nodiscard]] static Result<Library> open();

  SharedLibrary library;
  int version = 0;  ///< 22809 is 2.28.9

  GetVersion* get_version = nullptr;
  GetUniqueId* get_unique_id = nullptr;
  CommInitRankConfig* comm_init_rank_config = nullptr;
  CommFinalize* comm_finalize = nullptr;
  CommDestroy* comm_destroy = nullptr;
  CommAbort* comm_abort = nullptr;
  CommGetAsyncError* comm_get_async_error = nullptr;
  GetErrorString* get_error_string = nullptr;
  GetLastError* get_last_error = nullptr;
  AllReduce* all_reduce = nullptr;
  Broadcast* broadcast = nullptr;
  Reduce* reduce = nullptr;
  AllGather* all_gather = nullptr;
  ReduceScatter* reduce_scatter = nullptr;
  Send* send = nullptr;
  Recv* recv = nullptr;
  GroupStart* group_start = nullptr;
  GroupEnd* group_end = nullptr;

  // Optional functions of later versions; null if missing.
  CommInitRankScalable* comm_init_rank_scalable = nullptr;  ///< 2.23
  CommSplit* comm_split = nullptr;                          ///< 2.18
  MemAlloc* mem_alloc = nullptr;                            ///< 2.19, as the next three
  MemFree* mem_free = nullptr;
  CommRegister* comm_register = nullptr;
  CommDeregister* comm_deregister = nullptr;

  [[nodiscard]] bool registers_buffers() const {
    return mem_alloc != nullptr && mem_free != nullptr && comm_register != nullptr && comm_deregister != nullptr;
  }

  /// "ncclAllReduce: unhandled cuda error (out of memory)". `comm` may be null.
  [[nodiscard]] std::string describe(const std::string& what, Status status, Comm comm) const;
};

/// 22809 as "2.28.9".
[[nodiscard]] std::string format_version(int version);

/// The prefixes whose Python packages PyTorch would be among, without starting Python: $VIRTUAL_ENV; that of `program`,
/// the path with which this program was started; that of python3 in PATH, and unless it is a virtual environment that
/// of the file behind the link, and where pip installs for a user and on Debian. Reads the file system.
[[nodiscard]] std::vector<std::string> python_prefixes(const Environment& environment, const std::string& program);

/// Opens `name` where the dynamic linker finds it, else the first libnccl.so.2 of pip below the prefixes:
/// lib/python3.11/site-packages/nvidia/nccl/lib. Fails with `unsupported`, and with where it was looked for.
[[nodiscard]] Result<SharedLibrary> open_nccl(const std::string& name, const std::vector<std::string>& prefixes);

}  // namespace ddrun::collectives::nccl
