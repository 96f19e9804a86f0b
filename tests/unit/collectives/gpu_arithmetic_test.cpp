// The kernels' arithmetic, run on a CPU.

#include <cstring>
#include <vector>

#include "cuda/sequence_walk.hpp"
#include "ddrun/collectives/pattern.hpp"
#include "ddrun/test/catch.hpp"
#include "gpu/device_memory.hpp"

using namespace ddrun::collectives;

namespace {

constexpr std::uint64_t kThreads = 37;

/// Runs the threads of a kernel one after the other.
class Kernels {
 public:
  explicit Kernels(const Sequence& sequence)
      : element_(size_of(sequence.type())),
        table_(GpuKernels::table_bytes(sequence) / sizeof(std::uint32_t)),
        walk_{static_cast<std::uint32_t>(sequence.period().size()),
              static_cast<std::uint32_t>(Sequence::period_shift() * element_ % sequence.period().size())} {
    const auto table = GpuKernels::table_of(sequence);
    std::memcpy(table_.data(), table.data(), table.size());
  }

  void fill(std::span<std::byte> data, std::uint64_t first) const {
    each([&](auto element, std::uint64_t thread) {
      gpu::fill_part<element()>(reinterpret_cast<std::uint8_t*>(data.data()), data.size(), table_.data(), walk_,
                                first * element_, thread, kThreads);
    });
  }

  [[nodiscard]] std::uint64_t count_wrong(std::span<const std::byte> data, std::uint64_t first) const {
    std::uint64_t wrong = 0;
    each([&](auto element, std::uint64_t thread) {
      wrong += gpu::count_wrong_part<element()>(reinterpret_cast<const std::uint8_t*>(data.data()), data.size(),
                                                table_.data(), walk_, first * element_, thread, kThreads);
    });
    return wrong;
  }

 private:
  template <class Do>
  void each(Do act) const {
    for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
      if (element_ == 1) act(std::integral_constant<int, 1>(), thread);
      else if (element_ == 2) act(std::integral_constant<int, 2>(), thread);
      else if (element_ == 4) act(std::integral_constant<int, 4>(), thread);
      else act(std::integral_constant<int, 8>(), thread);
    }
  }

  std::size_t element_;
  std::vector<std::uint32_t> table_;
  gpu::Walk walk_;
};

}  // namespace

TEST_CASE("kernels fill and count as a Sequence does, at any alignment and length") {
  for (const DataType type : {DataType::uint8, DataType::bfloat16, DataType::float32, DataType::int64}) {
    const std::size_t element = size_of(type);
    const ExactPattern pattern(1, 3, type, ReduceOp::sum);
    const Kernels kernels(pattern.mine());
    for (const std::size_t count : {0, 1, 2, 3, 5, 8191, 8192, 40'003}) {
      for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{8190}, std::uint64_t{70'368'744'177'664}}) {
        for (const std::size_t offset : {0, 1, 3}) {
          std::vector<std::byte> memory((count + offset + 1) * element);
          const auto data = std::span(memory).subspan(offset * element, count * element);
          std::vector<std::byte> right(data.size());
          pattern.mine().fill(right, first);
          kernels.fill(data, first);
          CAPTURE(name_of(type), count, first, offset);
          REQUIRE(std::equal(right.begin(), right.end(), data.begin()));
          REQUIRE(memory.back() == std::byte{0});
          REQUIRE(kernels.count_wrong(data, first) == 0);
          if (count < 3) continue;
          for (const std::size_t wrong : {std::size_t{0}, count / 2, count - 1}) {
            data[wrong * element] ^= std::byte{64};
            data[wrong * element + element - 1] ^= std::byte{1};
          }
          REQUIRE(kernels.count_wrong(data, first) == 3);
          REQUIRE(kernels.count_wrong(right, first + 1) == pattern.mine().count_wrong(right, first + 1));
        }
      }
    }
  }
}
