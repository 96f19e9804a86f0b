// Lines of a lease program, in both directions: any bytes.
//
// Checks: every parser returns a value or none; terms and ticks are above 0; percent-encoding is reversible.
#include <cstdint>
#include <string>
#include <string_view>

#include "ddrun/lease/lease.hpp"
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
  if (const auto told = to_program::parse(text)) {
    if (const auto* job = std::get_if<to_program::Job>(&*told))
      DDRUN_FUZZ_CHECK(job->version > 0 && job->ttl.count() >= 0);
    if (const auto* tick = std::get_if<to_program::Tick>(&*told)) DDRUN_FUZZ_CHECK(tick->number > 0);
  }
  return 0;
}
