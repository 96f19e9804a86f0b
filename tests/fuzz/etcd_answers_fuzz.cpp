// Responses of etcd: any bytes.
//
// Checks: every parser returns a value or none; a key is not empty; base64 is reversible.
#include <cstdint>
#include <string>
#include <string_view>

#include "etcd_responses.hpp"
#include "input.hpp"

using namespace ddrun::etcd;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto snapshot = parse_range(text)) {
    DDRUN_FUZZ_CHECK(snapshot->revision > 0 && is_ok_response(text));
    for (const auto& kv : snapshot->kvs) DDRUN_FUZZ_CHECK(!kv.key.empty());
  }
  if (const auto txn = parse_txn(text)) DDRUN_FUZZ_CHECK(txn->found.revision > 0);
  if (const auto granted = parse_grant(text)) DDRUN_FUZZ_CHECK(granted->id != 0 && granted->ttl > 0);
  if (const auto left = parse_keepalive(text)) DDRUN_FUZZ_CHECK(*left >= 0);
  if (const auto token = parse_token(text)) {
    DDRUN_FUZZ_CHECK(!token->empty() && token->find_first_of(" \r\n") == std::string::npos);
  }
  if (const auto update = parse_watch(text)) {
    for (const auto& event : update->events) DDRUN_FUZZ_CHECK(!event.kv.key.empty());
  }
  (void)parse_error(text);
  if (const auto bytes = from_base64(text)) DDRUN_FUZZ_CHECK(bytes->size() <= text.size());
  DDRUN_FUZZ_CHECK(from_base64(to_base64(text)) == text);
  return 0;
}
