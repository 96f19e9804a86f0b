#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::collectives {

/// One way of going through a memory.
struct MemoryPass {
  std::string_view name;  ///< "copy"
  int arrays = 0;         ///< how many of the gauge's arrays are read or written, each once
};

/// When something began and ended.
struct MemoryTurn {
  Clock::time_point start;
  Clock::time_point end;
};

/// Goes through large arrays of its own in some memory, so that one sees what the memory can do. Failures are
/// `unavailable`, where a device or an allocation fails.
class MemoryGauge {
 public:
  MemoryGauge() = default;
  MemoryGauge(const MemoryGauge&) = delete;
  MemoryGauge& operator=(const MemoryGauge&) = delete;
  virtual ~MemoryGauge() = default;

  /// Whose memory: "host", or the device's name.
  [[nodiscard]] virtual std::string memory() const = 0;
  /// GB/s (10⁹ bytes) that the hardware says it has; 0: it does not say.
  [[nodiscard]] virtual double peak() const { return 0; }
  /// The same on every rank, as long as all have the same kind of memory.
  [[nodiscard]] virtual std::span<const MemoryPass> passes() const = 0;
  /// Bytes of an array that leave nothing of themselves in caches, or fewer if `ranks` ranks share this memory and it
  /// is short. A whole number of pages.
  [[nodiscard]] virtual Result<std::uint64_t> suitable_bytes(int ranks) const = 0;
  /// Once, before run(): the arrays, of so many bytes each, with something in them.
  [[nodiscard]] virtual Result<void> prepare(std::uint64_t bytes) = 0;
  /// Goes through them `times` times without a pause; blocks. By the clock that suits the memory.
  [[nodiscard]] virtual Result<MemoryTurn> run(const MemoryPass& pass, int times) = 0;
};

}  // namespace ddrun::collectives
