#pragma once

#include "ddrun/collectives/memory_gauge.hpp"
#include "ddrun/collectives/private_memory.hpp"

namespace ddrun::allreduce {

/// The machine's own memory, as one thread sees it: memcpy() and the triad.
class HostGauge final : public collectives::MemoryGauge {
 public:
  [[nodiscard]] std::string memory() const override { return "host"; }
  [[nodiscard]] std::span<const collectives::MemoryPass> passes() const override;
  [[nodiscard]] Result<std::uint64_t> suitable_bytes(int ranks) const override;
  [[nodiscard]] Result<void> prepare(std::uint64_t bytes) override;
  [[nodiscard]] Result<collectives::MemoryTurn> run(const collectives::MemoryPass& pass, int times) override;

 private:
  collectives::PrivateMemory memory_;
  std::size_t count_ = 0;  ///< of each array's doubles
};

}  // namespace ddrun::allreduce
