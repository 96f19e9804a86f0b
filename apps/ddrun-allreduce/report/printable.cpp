#include "report/printable.hpp"

#include <bit>
#include <vector>

namespace ddrun::allreduce {

namespace {

/// Bytes of the UTF-8 sequence that `text` begins with; 0 if it is none (RFC 3629).
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto ones = static_cast<std::size_t>(std::countl_one(byte(0)));
  if (ones == 0) return 1;
  if (ones < 2 || ones > 4 || text.size() < ones) return 0;
  char32_t code = byte(0) & (0x7fU >> ones);
  for (std::size_t i = 1; i < ones; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return 0;
    code = (code << 6U) | (byte(i) & 0x3fU);
  }
  const char32_t least = ones == 2 ? 0x80 : ones == 3 ? 0x800 : 0x10000;
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool control = (code >= 0x80 && code < 0xa0) || code == 0xfffe || code == 0xffff;
  return code < least || code > 0x10ffff || surrogate || control ? 0 : ones;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (length == 0 || first < 0x20 || first == 0x7f) {
      result += '?';
      text.remove_prefix(1);
    } else {
      result += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return result;
}

std::string printable(std::string_view text, std::size_t most) {
  const std::string all = printable(text);
  std::vector<std::size_t> begins;  // of characters
  for (std::size_t i = 0; i < all.size(); ++i) {
    if ((static_cast<unsigned char>(all[i]) & 0xc0U) != 0x80U) begins.push_back(i);
  }
  if (begins.size() <= most) return all;
  const std::size_t half = most / 2;
  return all.substr(0, begins[half]) + "..." + all.substr(begins[begins.size() - half]);
}

}  // namespace ddrun::allreduce
