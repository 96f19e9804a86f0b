#include "ddrun/collectives/memory.hpp"

#include <algorithm>

#include "ddrun/collectives/pattern.hpp"

namespace ddrun::collectives {

namespace {

class HostMemory final : public Memory {
 public:
  Result<void> fill(std::span<std::byte> data, const Sequence& sequence, std::uint64_t first) override {
    sequence.fill(data, first);
    return {};
  }
  Result<std::uint64_t> count_wrong(std::span<const std::byte> data, const Sequence& sequence,
                                    std::uint64_t first) override {
    return sequence.count_wrong(data, first);
  }
  Result<void> set(std::span<std::byte> data, std::byte value) override {
    std::fill(data.begin(), data.end(), value);
    return {};
  }
  Result<void> read(std::span<std::byte> to, std::span<const std::byte> from) override {
    std::copy(from.begin(), from.end(), to.begin());
    return {};
  }
  Result<void> write(std::span<std::byte> to, std::span<const std::byte> from) override { return read(to, from); }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace ddrun::collectives
