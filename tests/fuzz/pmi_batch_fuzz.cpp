// A node's blobs, its batch of puts and its ranks: any bytes.
//
// Checks: what is decoded could have been put, and gives the same bytes when it is encoded again. Ranks that make a
// world are each on one node.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "input.hpp"
#include "wire/pmi_line.hpp"
#include "wire/process_mapping.hpp"

using namespace ddrun::pmi;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view batch(reinterpret_cast<const char*>(data), size);
  std::vector<RankRange> ranges;
  if (decode_node(batch, 0, ranges)) {
    std::int64_t world = 0;
    for (const RankRange& range : ranges) world += range.count;
    const int size_of_world = static_cast<int>(std::clamp<std::int64_t>(world, 0, 1'000'000));
    if (const auto placement = place(ranges, size_of_world)) {
      std::int64_t placed = 0;
      for (const auto& [node, ranks] : *placement) {
        DDRUN_FUZZ_CHECK(ranks > 0);
        placed += ranks;
      }
      DDRUN_FUZZ_CHECK(placed == size_of_world && number_nodes(*placement).size() <= 1);
    }
  }
  const auto puts = decode_puts(batch);
  if (!puts) return 0;
  std::string again;
  for (const auto& [key, value] : *puts) {
    DDRUN_FUZZ_CHECK(is_storable(key, value));
    append_put(again, key, value);
  }
  DDRUN_FUZZ_CHECK(again == batch);
  return 0;
}
