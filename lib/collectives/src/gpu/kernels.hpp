#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ddrun/collectives/collective.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "gpu/cuda.hpp"

namespace ddrun::collectives {

/// cuda/kernels.cu compiled by nvcc, for cuModuleLoadData(); null in a build without nvcc.
[[nodiscard]] const void* gpu_kernels_image();

/// The kernels of cuda/kernels.cu on one device. All calls enqueue work on the device's stream and return.
class GpuKernels {
 public:
  /// Fails with `unsupported` if there are none for this device: in a build without kernels, and where the driver
  /// refuses them as built for other architectures or by a later toolkit. Other errors are `unavailable`.
  [[nodiscard]] static Result<GpuKernels> load(std::shared_ptr<cuda::Device> device);
  GpuKernels(GpuKernels&& other) noexcept;
  GpuKernels& operator=(GpuKernels&& other) noexcept;
  ~GpuKernels();

  /// The period in the kernels' format, to be copied to device memory; and its size.
  [[nodiscard]] static std::vector<std::byte> table_of(const Sequence& sequence);
  [[nodiscard]] static std::size_t table_bytes(const Sequence& sequence);

  [[nodiscard]] Result<void> fill(std::span<std::byte> data, const Sequence& sequence, const std::byte* table,
                                  std::uint64_t first) const;
  /// Adds the number of wrong elements to the 64-bit counter at `counter`.
  [[nodiscard]] Result<void> count_wrong(std::span<const std::byte> data, const Sequence& sequence,
                                         const std::byte* table, std::uint64_t first, std::byte* counter) const;

 private:
  explicit GpuKernels(std::shared_ptr<cuda::Device> device) : device_(std::move(device)) {}
  [[nodiscard]] Result<void> launch(const std::string& name, std::size_t shared_bytes,
                                    std::span<void* const> arguments) const;

  std::shared_ptr<cuda::Device> device_;
  cuda::Module module_ = nullptr;
};

}  // namespace ddrun::collectives
