#pragma once

#include <memory>

#include "gpu/cuda.hpp"
#include "gpu/nccl_library.hpp"

namespace ddrun::collectives {

/// Fails with `invalid_argument` if two buffers of `bytes` for each of `ranks` on the device do not leave room for what
/// NCCL itself allocates. For all of them, so call it before any allocates.
[[nodiscard]] Result<void> check_room(const nccl::Library& library, const cuda::Device& device, std::size_t bytes,
                                      int ranks);

/// The two device buffers.
struct NcclBuffers {
  /// Fails with `unavailable` if the device refuses.
  [[nodiscard]] static Result<NcclBuffers> make(const nccl::Library& library,
                                                const std::shared_ptr<cuda::Device>& device, std::size_t bytes);

  std::shared_ptr<std::byte> send;
  std::shared_ptr<std::byte> recv;
  std::size_t bytes = 0;
  bool from_nccl = false;  ///< from ncclMemAlloc(), so that they can be registered; else from the driver
};

}  // namespace ddrun::collectives
