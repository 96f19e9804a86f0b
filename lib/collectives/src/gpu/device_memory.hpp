#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddrun/collectives/memory.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "gpu/cuda.hpp"

namespace ddrun::collectives {

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

/// Device memory, filled and compared by ddrun's kernels. Where there are none for this device the data is copied
/// through host memory, piece by piece, at the speed of the bus.
class DeviceMemory final : public Memory {
 public:
  /// Loads the kernels and tests that they detect a wrong element. Fails with `unavailable` if the test fails.
  [[nodiscard]] static Result<std::unique_ptr<DeviceMemory>> make(std::shared_ptr<cuda::Device> device);
  /// Why the kernels are not used; empty if they are.
  [[nodiscard]] const std::string& lacks_kernels() const { return lacks_kernels_; }

  [[nodiscard]] Result<void> fill(std::span<std::byte> data, const Sequence& sequence, std::uint64_t first) override;
  [[nodiscard]] Result<std::uint64_t> count_wrong(std::span<const std::byte> data, const Sequence& sequence,
                                                  std::uint64_t first) override;
  [[nodiscard]] Result<void> set(std::span<std::byte> data, std::byte value) override;
  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::span<const std::byte> from) override;
  [[nodiscard]] Result<void> write(std::span<std::byte> to, std::span<const std::byte> from) override;

 private:
  struct Table {
    std::vector<std::byte> period;
    cuda::Array array;
  };

  explicit DeviceMemory(std::shared_ptr<cuda::Device> device) : device_(std::move(device)) {}
  [[nodiscard]] Result<void> wait(const std::string& what) const;
  [[nodiscard]] Result<const cuda::Array*> table_of(const Sequence& sequence);
  [[nodiscard]] bool fits_shared_memory(const Sequence& sequence) const;
  [[nodiscard]] Result<void> self_test();

  std::shared_ptr<cuda::Device> device_;
  std::optional<GpuKernels> kernels_;
  std::string lacks_kernels_;
  std::vector<Table> tables_;  ///< most recently used last
  cuda::Array counter_;
  std::vector<std::byte> piece_;  ///< for copies through host memory
};

}  // namespace ddrun::collectives
