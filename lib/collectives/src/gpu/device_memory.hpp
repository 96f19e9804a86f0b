#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ddrun/collectives/collective.hpp"
#include "ddrun/collectives/memory.hpp"
#include "gpu/cuda.hpp"
#include "gpu/kernels.hpp"

namespace ddrun::collectives {

/// A device's memory, filled and compared by kernels of our own. In a build without them the data goes through the
/// host's memory, piece by piece: right, but as slow as the way between the two.
class DeviceMemory final : public Memory {
 public:
  /// Loads the kernels and lets them show that they find a wrong element where there is one. Fails with `unavailable`
  /// if the device refuses, or if they do not.
  [[nodiscard]] static Result<std::unique_ptr<DeviceMemory>> make(std::shared_ptr<cuda::Device> device);

  [[nodiscard]] Result<void> fill(std::span<std::byte> data, const Sequence& sequence, std::uint64_t first) override;
  [[nodiscard]] Result<std::uint64_t> count_wrong(std::span<const std::byte> data, const Sequence& sequence,
                                                  std::uint64_t first) override;
  [[nodiscard]] Result<void> set(std::span<std::byte> data, std::byte value) override;
  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::span<const std::byte> from) override;
  [[nodiscard]] Result<void> write(std::span<std::byte> to, std::span<const std::byte> from) override;

 private:
  /// A sequence's period as the kernels read it.
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
  std::vector<Table> tables_;  ///< the latest used last
  cuda::Array counter_;
  std::vector<std::byte> piece_;  ///< on its way between the two memories
};

}  // namespace ddrun::collectives
