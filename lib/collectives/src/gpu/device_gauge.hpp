#pragma once

#include <array>
#include <memory>
#include <optional>

#include "ddrun/collectives/memory_gauge.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "gpu/cuda_device.hpp"
#include "gpu/kernels.hpp"

namespace ddrun::collectives {

/// Times, by the device's own clock, copies that the driver makes within the device's memory, and our kernels: filling,
/// verifying (which has to find every element right) and reducing two arrays into a third.
class DeviceGauge final : public MemoryGauge {
 public:
  /// `kernels` outlives this; null: only copies are timed.
  DeviceGauge(std::shared_ptr<cuda::Device> device, const GpuKernels* kernels);

  [[nodiscard]] std::string memory() const override { return device_->name(); }
  [[nodiscard]] double peak() const override { return device_->peak_bandwidth(); }
  [[nodiscard]] std::span<const MemoryPass> passes() const override;
  [[nodiscard]] Result<std::uint64_t> suitable_bytes(int ranks) const override;
  [[nodiscard]] Result<void> prepare(std::uint64_t bytes) override;
  [[nodiscard]] Result<MemoryTurn> run(const MemoryPass& pass, int times) override;

 private:
  [[nodiscard]] Result<void> enqueue(std::string_view name) const;
  [[nodiscard]] Result<void> wait(const cuda::Event& event) const;
  [[nodiscard]] Result<void> check_counter();

  std::shared_ptr<cuda::Device> device_;
  const GpuKernels* kernels_;
  ExactPattern pattern_;
  std::array<cuda::Array, 3> arrays_;
  cuda::Array table_;    ///< the pattern's
  cuda::Array counter_;  ///< of wrong elements
  cuda::Array inputs_;   ///< addresses of what is reduced
  std::optional<cuda::Event> start_;
  std::optional<cuda::Event> end_;
};

}  // namespace ddrun::collectives
