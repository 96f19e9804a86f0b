#include "ddrun/base/bytes.hpp"

#include <algorithm>
#include <vector>

#include "ddrun/test/catch.hpp"

using namespace ddrun;

TEST_CASE("every byte is random, of few and of many") {
  // getrandom() always returns up to 256 bytes in one call, and never more than 32 MiB.
  for (const std::size_t size : {std::size_t{1}, std::size_t{16}, std::size_t{300}, (std::size_t{32} << 20U) + 64}) {
    std::vector<std::byte> bytes(size);
    REQUIRE(fill_random(bytes));
    // 32 zeros in a row, or all alike: once in 2^250 times.
    if (size >= 32) CHECK(std::count(bytes.end() - 32, bytes.end(), std::byte{0}) < 32);
    std::vector<std::byte> again(size);
    REQUIRE(fill_random(again));
    if (size >= 16) CHECK(bytes != again);
  }
  CHECK(fill_random({}));
}
