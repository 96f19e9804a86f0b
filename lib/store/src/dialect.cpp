#include "dialect.hpp"

#include <algorithm>

namespace ddrun::store {

std::optional<Dialect> tell_dialect(std::string_view first_bytes) {
  static constexpr std::string_view greeting("\x00\xce\xf7\x85\x3c", 5);
  const std::size_t size = std::min(first_bytes.size(), greeting.size());
  if (first_bytes.substr(0, size) != greeting.substr(0, size)) return Dialect::old;
  if (size < greeting.size()) return std::nullopt;
  return Dialect::modern;
}

}  // namespace ddrun::store
