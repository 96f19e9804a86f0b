// A node's batch of puts: any bytes.
//
// Checks: what is decoded could have been put, and gives the same bytes when it is encoded again.
#include <cstdint>
#include <string>
#include <string_view>

#include "input.hpp"
#include "wire/pmi_line.hpp"
#include "wire/put_batch.hpp"

using namespace ddrun::pmi;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view batch(reinterpret_cast<const char*>(data), size);
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
