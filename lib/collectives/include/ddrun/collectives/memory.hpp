#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ddrun/base/result.hpp"
#include "ddrun/collectives/memory_gauge.hpp"

namespace ddrun::collectives {

class Sequence;

/// Reads and writes the memory that a back end works on, which may be that of a device. Spans are whole elements of the
/// sequence's type. Blocks until it is done; fails only where a device does (`unavailable`).
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  /// Elements first, first + 1, … of `sequence`.
  [[nodiscard]] virtual Result<void> fill(std::span<std::byte> data, const Sequence& sequence, std::uint64_t first) = 0;
  /// How many elements are not those.
  [[nodiscard]] virtual Result<std::uint64_t> count_wrong(std::span<const std::byte> data, const Sequence& sequence,
                                                          std::uint64_t first) = 0;
  [[nodiscard]] virtual Result<void> set(std::span<std::byte> data, std::byte value) = 0;
  /// Between this memory and the program's own; equal sizes.
  [[nodiscard]] virtual Result<void> read(std::span<std::byte> to, std::span<const std::byte> from) = 0;
  [[nodiscard]] virtual Result<void> write(std::span<std::byte> to, std::span<const std::byte> from) = 0;

  /// Measures a device's memory, which outlives it. Null: this is the program's own, and anybody can measure that.
  [[nodiscard]] virtual std::unique_ptr<MemoryGauge> gauge() { return nullptr; }
};

/// The program's own memory. Lives as long as the program.
[[nodiscard]] Memory& host_memory();

}  // namespace ddrun::collectives
