#include "put_batch.hpp"

#include "ddrun/base/bytes.hpp"
#include "pmi_line.hpp"

namespace ddrun::pmi {

void append_put(std::string& batch, std::string_view key, std::string_view value) {
  bytes::put_text(batch, key);
  bytes::put_text(batch, value);
}

Result<std::vector<std::pair<std::string_view, std::string_view>>> decode_puts(std::string_view batch) {
  std::vector<std::pair<std::string_view, std::string_view>> puts;
  bool valid = batch.size() <= max_batch_bytes;
  for (bytes::Reader reader(batch); valid && !reader.left().empty();) {
    const std::string_view key = reader.text();
    const std::string_view value = reader.text();
    valid = reader.ok() && is_storable(key, value);
    puts.emplace_back(key, value);
  }
  if (!valid) return fail(Errc::protocol, "malformed keys");
  return puts;
}

}  // namespace ddrun::pmi
