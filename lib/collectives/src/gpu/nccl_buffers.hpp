#pragma once

#include <array>
#include <memory>
#include <span>

#include "gpu/cuda.hpp"
#include "gpu/nccl_library.hpp"

namespace ddrun::collectives {

/// Fails with `invalid_argument` if two buffers of `bytes` for each of `ranks` on the device do not leave room for what
/// NCCL itself allocates. For all of them, so call it before any allocates.
[[nodiscard]] Result<void> check_room(const cuda::Device& device, std::size_t bytes, int ranks);

/// The two device buffers: from ncclMemAlloc() if available, so that they can be registered, else from the driver.
class NcclBuffers {
 public:
  /// Fails with `unavailable` if the device refuses.
  [[nodiscard]] static Result<NcclBuffers> make(const nccl::Library& library, std::shared_ptr<cuda::Device> device,
                                                std::size_t bytes);
  NcclBuffers(NcclBuffers&& other) noexcept;
  NcclBuffers& operator=(NcclBuffers&&) = delete;
  ~NcclBuffers();

  [[nodiscard]] std::span<std::byte> send() const { return {data_[0], bytes_}; }
  [[nodiscard]] std::span<std::byte> recv() const { return {data_[1], bytes_}; }
  [[nodiscard]] bool from_nccl() const { return free_ != nullptr; }

 private:
  NcclBuffers(std::shared_ptr<cuda::Device> device, std::size_t bytes) : device_(std::move(device)), bytes_(bytes) {}

  std::shared_ptr<cuda::Device> device_;
  std::size_t bytes_;
  std::array<std::byte*, 2> data_{};
  std::array<cuda::Array, 2> arrays_;
  nccl::MemFree* free_ = nullptr;
};

}  // namespace ddrun::collectives
