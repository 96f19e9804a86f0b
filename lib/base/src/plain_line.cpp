#include "ddrun/base/plain_line.hpp"

namespace ddrun {

namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

/// Bytes of the UTF-8 character that begins at `at`; 0 if there is none.
std::size_t character_size(std::string_view text, std::size_t at) {
  const auto first = static_cast<unsigned char>(text[at]);
  const std::size_t size = first < 0x80   ? 1
                           : first < 0xC2 ? 0
                           : first < 0xE0 ? 2
                           : first < 0xF0 ? 3
                           : first < 0xF5 ? 4
                                          : 0;
  if (size == 0 || at + size > text.size()) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if (!continues_character(text[at + i])) return 0;
  }
  return size;
}

/// Behind the escape sequence that begins at `at`.
std::size_t behind_escape(std::string_view text, std::size_t at) {
  if (++at == text.size()) return at;
  const char kind = text[at++];
  if (kind == '[') {  // CSI … final byte
    while (at < text.size() && (text[at] < '@' || text[at] > '~')) ++at;
    return at < text.size() ? at + 1 : at;
  }
  if (kind == ']' || kind == 'P' || kind == 'X' || kind == '^' || kind == '_') {  // a string, up to BEL or ESC '\'
    while (at < text.size() && text[at] != '\a' && text[at] != '\033') ++at;
    if (at < text.size() && text[at] == '\033') ++at;
    return at < text.size() ? at + 1 : at;
  }
  while (kind >= ' ' && kind <= '/' && at < text.size()) {  // intermediate bytes, then a final one
    if (text[at] < ' ' || text[at] > '/') return at + 1;
    ++at;
  }
  return at;
}

}  // namespace

std::string plain_line(std::string_view text) {
  while (text.ends_with('\r')) text.remove_suffix(1);
  if (const std::size_t over = text.rfind('\r'); over != std::string_view::npos) text.remove_prefix(over + 1);
  std::string plain;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    const std::size_t size = character_size(text, at);
    if (c == '\033') {
      at = behind_escape(text, at);
    } else if (size == 0) {
      plain += '?';
      ++at;
    } else if (size == 2 && c == '\xC2' && static_cast<unsigned char>(text[at + 1]) < 0xA0) {
      at += 2;  // control characters again, in their eight-bit form
    } else {
      if (c == '\t') plain += "    ";
      else if (size > 1 || (c >= ' ' && c != '\x7f')) plain += text.substr(at, size);
      at += size;
    }
  }
  return plain;
}

std::string cut_line(std::string text, std::size_t columns) {
  std::size_t at = 0;
  for (std::size_t column = 0; at < text.size(); ++column) {
    if (column == columns) break;
    do ++at;
    while (at < text.size() && continues_character(text[at]));
  }
  if (at < text.size()) {
    text.resize(at);
    text += "...";
  }
  return text;
}

}  // namespace ddrun
