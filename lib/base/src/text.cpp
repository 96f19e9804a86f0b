#include "ddrun/base/text.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <numeric>

namespace ddrun {

namespace {

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U; }

/// The position after the escape sequence at `at`.
std::size_t behind_escape(std::string_view text, std::size_t at) {
  if (++at == text.size()) return at;
  const char kind = text[at++];
  if (kind == '[') {  // CSI … final byte
    while (at < text.size() && (text[at] < '@' || text[at] > '~')) ++at;
    return at < text.size() ? at + 1 : at;
  }
  if (std::string_view("]PX^_k").find(kind) != std::string_view::npos) {  // a string, up to BEL or ESC '\'
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

std::size_t utf8_size(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(at + i < text.size() ? text[at + i] : 0); };
  const unsigned first = byte(0);
  const std::size_t size = first < 0x80   ? 1
                           : first < 0xC2 ? 0
                           : first < 0xE0 ? 2
                           : first < 0xF0 ? 3
                           : first < 0xF5 ? 4
                                          : 0;
  for (std::size_t i = 1; i < size; ++i) {
    if (byte(i) >> 6U != 2) return 0;
  }
  // Longer than needed, half a surrogate pair, or behind the last character.
  const bool forbidden = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) >= 0xA0) ||
                         (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) >= 0x90);
  return forbidden ? 0 : size;
}

char32_t decode_utf8(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0);
  char32_t code = byte(0) & (0xFFU >> (character.size() + 1));
  for (std::size_t i = 1; i < character.size(); ++i) code = code << 6U | (byte(i) & 0x3FU);
  return code;
}

void append_utf8(std::string& text, char32_t code) {
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
  constexpr std::array<unsigned, 4> lead{0, 0xc0, 0xe0, 0xf0};
  const unsigned tails = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  text += static_cast<char>(lead[tails] | code >> 6 * tails);
  for (unsigned i = tails; i-- > 0;) text += static_cast<char>(0x80U | (code >> 6 * i & 0x3fU));
}

std::size_t hidden_character(std::string_view text, std::size_t at) {
  const std::size_t size = utf8_size(text, at);
  if (size < 2) return 0;
  const char32_t code = decode_utf8(text.substr(at, size));
  // Where a range begins, and where the next character is not in it.
  constexpr std::array<char32_t, 16> bounds{0x61C,  0x61D,  0x200B, 0x200C, 0x200E, 0x2010, 0x2028,  0x202F,
                                            0x2060, 0x2070, 0xFEFF, 0xFF00, 0xFFF9, 0xFFFC, 0xE0000, 0xE1000};
  return (std::upper_bound(bounds.begin(), bounds.end(), code) - bounds.begin()) % 2 == 1 ? size : 0;
}

std::string plain_line(std::string_view text) {
  while (text.ends_with('\r')) text.remove_suffix(1);
  if (const std::size_t over = text.rfind('\r'); over != std::string_view::npos) text.remove_prefix(over + 1);
  std::string plain;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    const std::size_t size = utf8_size(text, at);
    if (c == '\033') {
      at = behind_escape(text, at);
    } else if (size == 0) {
      plain += '?';
      ++at;
    } else if (size == 2 && c == '\xC2' && static_cast<unsigned char>(text[at + 1]) < 0xA0) {
      at += 2;  // C1 control characters
    } else if (const std::size_t hidden = hidden_character(text, at); hidden > 0) {
      at += hidden;
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

std::string cut_in_path(std::string text, std::size_t columns) {
  constexpr std::string_view dots = "...";
  const auto size = static_cast<std::size_t>(std::count_if(text.begin(), text.end(), std::not_fn(continues_character)));
  if (size <= columns) return text;
  std::string_view path;
  for (std::string_view left = text; !left.empty();) {
    const std::string_view word = left.substr(0, left.find_first_of(" \"'()<>[]"));
    if (word.size() > path.size() && word.find('/') != std::string_view::npos) path = word;
    left.remove_prefix(std::min(word.size() + 1, left.size()));
  }
  // A character counts by its bytes here, so that rather too much is left out.
  std::size_t slash = path.find('/', size + dots.size() - columns);
  if (slash == std::string_view::npos) slash = path.rfind('/');
  if (slash != std::string_view::npos && slash > dots.size())
    text.replace(static_cast<std::size_t>(path.data() - text.data()), slash, dots);
  return cut_line(std::move(text), columns);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::string_view trim_typed(std::string_view text) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());
  return trim(text);
}

std::string_view short_host_name(std::string_view host) {
  const std::string_view first = host.substr(0, host.find('.'));
  const bool is_number = first.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number || host.find(':') != std::string_view::npos ? host : first;
}

bool names_same_host(std::string_view a, std::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return a == b || (!a.empty() && b.starts_with(a) && b[a.size()] == '.' && short_host_name(b) != b);
}

std::string in_hex(std::span<const std::byte> bytes) {
  std::string digits;
  digits.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    const auto value = std::to_integer<unsigned>(byte);
    digits += "0123456789abcdef"[value >> 4U];
    digits += "0123456789abcdef"[value & 15U];
  }
  return digits;
}

std::string shell_quote(std::string_view word) {
  constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+./:,@%^";
  if (!word.empty() && word.find_first_not_of(plain) == std::string_view::npos) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') quoted += "'\\''";
    else quoted += c;
  }
  return quoted + "'";
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::vector<std::size_t> before(row);  // two rows above
  std::vector<std::size_t> above(row);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  // Any two short words are near each other: only one edit counts.
  std::size_t best_distance = (word.size() < 5 ? 1 : std::max<std::size_t>(2, word.size() / 3)) + 1;
  for (const auto& candidate : candidates) {
    std::size_t distance = edit_distance(word, candidate);
    // A prefix counts as one edit.
    if (word.size() >= 3 && candidate.starts_with(word)) distance = std::min<std::size_t>(distance, 1);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string counted(long long number, std::string_view what) {
  return concat(number, ' ', what, number == 1 ? "" : "s");
}

std::string fold_ranks(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(ranks[i]);
    if (last > i) text += (last == i + 1 ? "," : "-") + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string name_ranks(const std::vector<int>& ranks) {
  return concat(ranks.size() == 1 ? "rank " : "ranks ", fold_ranks(ranks));
}

std::string RankName::text() const { return concat(role, role.empty() ? "" : " ", "rank ", rank); }

namespace {

/// Joins what `describe` makes of each role and its ranks.
template <class Describe>
std::string by_role(const std::vector<RankName>& workers, std::string_view between, Describe describe) {
  std::vector<std::pair<std::string, std::vector<int>>> roles;
  for (const RankName& worker : workers) {
    auto known = std::find_if(roles.begin(), roles.end(), [&](const auto& one) { return one.first == worker.role; });
    if (known == roles.end()) known = roles.insert(known, {worker.role, {}});
    known->second.push_back(worker.rank);
  }
  std::vector<std::string> texts;
  for (const auto& [role, numbers] : roles) texts.push_back(describe(role, numbers));
  return join(texts, between);
}

}  // namespace

std::string fold_workers(const std::vector<RankName>& workers) {
  return by_role(workers, ",", [](const std::string& role, const std::vector<int>& numbers) {
    return concat(role, role.empty() ? "" : ":", fold_ranks(numbers));
  });
}

std::string name_workers(const std::vector<RankName>& workers) {
  return by_role(workers, ", ", [](const std::string& role, const std::vector<int>& numbers) {
    return concat(role, role.empty() ? "" : " ", name_ranks(numbers));
  });
}

}  // namespace ddrun
