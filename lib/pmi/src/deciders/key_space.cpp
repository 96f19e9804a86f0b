#include "key_space.hpp"

#include <algorithm>
#include <utility>

#include "pmi_line.hpp"

namespace ddrun::pmi {

bool KeySpace::put(std::string_view key, std::string_view value) {
  if (!is_storable(key, value) || !store(key, value)) return false;
  // One more than fits is kept, and refused when it is to be sent.
  if (collect_ && batch_.size() <= max_batch_bytes) append_put(batch_, key, value);
  return true;
}

bool KeySpace::merge(std::string_view batch) {
  const auto puts = decode_puts(batch);
  return puts && std::all_of(puts->begin(), puts->end(), [&](const auto& put) { return store(put.first, put.second); });
}

std::optional<std::string_view> KeySpace::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional<std::string_view>(found->second);
}

std::string KeySpace::take_batch() { return std::exchange(batch_, {}); }

bool KeySpace::store(std::string_view key, std::string_view value) {
  auto found = values_.find(key);
  const std::size_t replaced = found == values_.end() ? 0 : key.size() + found->second.size();
  const std::size_t bytes = bytes_ - replaced + key.size() + value.size();
  if (bytes > max_bytes) return false;
  bytes_ = bytes;
  if (found == values_.end()) values_.emplace(key, value);
  else found->second = value;
  return true;
}

}  // namespace ddrun::pmi
