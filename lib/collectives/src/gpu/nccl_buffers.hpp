#pragma once

#include <array>
#include <memory>
#include <span>

#include "gpu/cuda_device.hpp"
#include "gpu/nccl_library.hpp"

namespace ddrun::collectives {

/// The two buffers on the device: from ncclMemAlloc() where the library has it, so that they can be registered, else
/// from the driver.
class NcclBuffers {
 public:
  /// Fails with `invalid_argument` if the device has not as much memory free, before anything is taken.
  [[nodiscard]] static Result<NcclBuffers> make(const nccl::Library& library, std::shared_ptr<cuda::Device> device,
                                                std::size_t bytes);
  NcclBuffers(NcclBuffers&& other) noexcept;
  NcclBuffers& operator=(NcclBuffers&&) = delete;
  ~NcclBuffers();

  [[nodiscard]] std::span<std::byte> send() const { return {data_[0], bytes_}; }
  [[nodiscard]] std::span<std::byte> recv() const { return {data_[1], bytes_}; }
  /// Whether they can be registered.
  [[nodiscard]] bool are_nccls() const { return free_ != nullptr; }

 private:
  NcclBuffers(std::shared_ptr<cuda::Device> device, std::size_t bytes) : device_(std::move(device)), bytes_(bytes) {}

  std::shared_ptr<cuda::Device> device_;
  std::size_t bytes_;
  std::array<std::byte*, 2> data_{};
  std::array<cuda::Array, 2> arrays_;
  nccl::MemFree* free_ = nullptr;
};

}  // namespace ddrun::collectives
