// Lines of a lease program: any bytes.
//
// Checks: the parser returns a value or none; terms and ticks are above 0; percent-encoding is reversible.
#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/lease/program_lines.hpp"
#include "input.hpp"

using namespace ddrun::lease;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  DDRUN_FUZZ_CHECK(percent_decode(percent_encode(text)) == text);
  if (const auto bytes = percent_decode(text)) DDRUN_FUZZ_CHECK(percent_encode(*bytes) == text);
  if (const auto said = from_program::parse(text)) {
    if (const auto* mine = std::get_if<from_program::Mine>(&*said)) DDRUN_FUZZ_CHECK(mine->term > 0 && mine->tick > 0);
    if (const auto* other = std::get_if<from_program::Other>(&*said)) DDRUN_FUZZ_CHECK(other->term > 0);
  }
  return 0;
}
