#include "terminal_text.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <span>

#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

/// First and last character.
struct CharacterRange {
  char32_t first;
  char32_t last;
};
constexpr CharacterRange combining[] = {
    {0x300, 0x36F},   {0x483, 0x489},   {0x591, 0x5BD},   {0x610, 0x61A},     {0x64B, 0x65F},
    {0x6D6, 0x6DC},   {0x93C, 0x93C},   {0x941, 0x948},   {0x94D, 0x94D},     {0xE31, 0xE31},
    {0xE34, 0xE3A},   {0xE47, 0xE4E},   {0x1AB0, 0x1AFF}, {0x1DC0, 0x1DFF},   {0x200B, 0x200F},
    {0x202A, 0x202E}, {0x2060, 0x2064}, {0x20D0, 0x20FF}, {0x302A, 0x302D},   {0x3099, 0x309A},
    {0xFE00, 0xFE0F}, {0xFE20, 0xFE2F}, {0xFEFF, 0xFEFF}, {0xE0001, 0xE007F}, {0xE0100, 0xE01EF},
};
constexpr CharacterRange wide[] = {
    {0x1100, 0x115F},   {0x231A, 0x231B},   {0x2329, 0x232A},   {0x23E9, 0x23EC},   {0x23F0, 0x23F0},
    {0x23F3, 0x23F3},   {0x25FD, 0x25FE},   {0x2614, 0x2615},   {0x2648, 0x2653},   {0x267F, 0x267F},
    {0x2693, 0x2693},   {0x26A1, 0x26A1},   {0x26AA, 0x26AB},   {0x26BD, 0x26BE},   {0x26C4, 0x26C5},
    {0x26CE, 0x26CE},   {0x26D4, 0x26D4},   {0x26EA, 0x26EA},   {0x26F2, 0x26F3},   {0x26F5, 0x26F5},
    {0x26FA, 0x26FA},   {0x26FD, 0x26FD},   {0x2705, 0x2705},   {0x270A, 0x270B},   {0x2728, 0x2728},
    {0x274C, 0x274C},   {0x274E, 0x274E},   {0x2753, 0x2755},   {0x2757, 0x2757},   {0x2795, 0x2797},
    {0x27B0, 0x27B0},   {0x27BF, 0x27BF},   {0x2B1B, 0x2B1C},   {0x2B50, 0x2B50},   {0x2B55, 0x2B55},
    {0x2E80, 0x303E},   {0x3041, 0x33FF},   {0x3400, 0x4DBF},   {0x4E00, 0xA4CF},   {0xA960, 0xA97C},
    {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},   {0xFE10, 0xFE19},   {0xFE30, 0xFE6F},   {0xFF01, 0xFF60},
    {0xFFE0, 0xFFE6},   {0x16FE0, 0x18DFF}, {0x1AFF0, 0x1B2FF}, {0x1F004, 0x1F004}, {0x1F0CF, 0x1F0CF},
    {0x1F18E, 0x1F18E}, {0x1F191, 0x1F19A}, {0x1F200, 0x1F320}, {0x1F32D, 0x1F335}, {0x1F337, 0x1F37C},
    {0x1F37E, 0x1F393}, {0x1F3A0, 0x1F3CA}, {0x1F3CF, 0x1F3D3}, {0x1F3E0, 0x1F3F0}, {0x1F3F4, 0x1F3F4},
    {0x1F3F8, 0x1F43E}, {0x1F440, 0x1F440}, {0x1F442, 0x1F4FC}, {0x1F4FF, 0x1F53D}, {0x1F54B, 0x1F54E},
    {0x1F550, 0x1F567}, {0x1F57A, 0x1F57A}, {0x1F595, 0x1F596}, {0x1F5A4, 0x1F5A4}, {0x1F5FB, 0x1F64F},
    {0x1F680, 0x1F6C5}, {0x1F6CC, 0x1F6CC}, {0x1F6D0, 0x1F6D2}, {0x1F6D5, 0x1F6D7}, {0x1F6DC, 0x1F6DF},
    {0x1F6EB, 0x1F6EC}, {0x1F6F4, 0x1F6FC}, {0x1F7E0, 0x1F7EB}, {0x1F7F0, 0x1F7F0}, {0x1F90C, 0x1F93A},
    {0x1F93C, 0x1F945}, {0x1F947, 0x1F9FF}, {0x1FA70, 0x1FAFF}, {0x20000, 0x3FFFD},
};

bool contains(std::span<const CharacterRange> ranges, char32_t code) {
  const auto at = std::ranges::lower_bound(ranges, code, {}, &CharacterRange::last);
  return at != ranges.end() && at->first <= code;
}

/// The numbers of an SGR sequence; those behind ':' belong to the one before.
struct Parameters {
  struct One {
    int value;
    bool is_part;
  };
  std::array<One, 32> all{};
  std::size_t count = 0;
  std::size_t at = 0;

  explicit Parameters(std::string_view text) {
    bool is_part = false;
    while (count < all.size()) {
      const std::size_t end = std::min(text.find_first_of(";:"), text.size());
      all[count++] = {std::atoi(std::string(text.substr(0, std::min<std::size_t>(end, 6))).c_str()), is_part};
      if (end == text.size()) return;
      is_part = text[end] == ':';
      text.remove_prefix(end + 1);
    }
  }
  int next() { return at < count ? all[at++].value : 0; }
  [[nodiscard]] std::size_t parts() const {
    std::size_t end = at;
    while (end < count && all[end].is_part) ++end;
    return end - at;
  }
  std::uint32_t color() {
    const std::size_t parts_left = parts();
    const int kind = next();
    if (kind == 5) return 1 + (static_cast<std::uint32_t>(next()) & 0xFFU);
    if (kind != 2) return 0;
    if (parts_left > 4) ++at;  // a colour space
    std::uint32_t rgb = 1;
    for (int i = 0; i < 3; ++i) rgb = rgb << 8U | (static_cast<std::uint32_t>(next()) & 0xFFU);
    return rgb;
  }
};

}  // namespace

int width_of(char32_t code) {
  if (code < 0x300) return 1;
  if (contains(combining, code)) return 0;
  return contains(wide, code) ? 2 : 1;
}

void Style::apply(std::string_view parameters) {
  const auto clear = [this](unsigned bits) { attributes = static_cast<std::uint16_t>(attributes & ~bits); };
  for (Parameters given(parameters); given.at < given.count;) {
    const int code = given.next();
    if (code == 0) *this = {.link = link};
    else if (code == 4) underline = given.parts() > 0 ? static_cast<std::uint8_t>(given.next() % 6) : 1;
    else if (code == 21) underline = 2;
    else if (code >= 1 && code <= 9) attributes = static_cast<std::uint16_t>(attributes | 1U << (code - 1U));
    else if (code == 53) attributes |= 1U << 9U;
    else if (code == 22) clear(3U);
    else if (code == 24) underline = 0;
    else if (code == 25) clear(3U << 4U);
    else if (code >= 23 && code <= 29) clear(1U << static_cast<unsigned>(code - 21));
    else if (code == 55) clear(1U << 9U);
    else if (code == 38) colors[0] = given.color();
    else if (code == 48) colors[1] = given.color();
    else if (code == 58) colors[2] = given.color();
    else if (code == 39 || code == 49 || code == 59) colors[code / 10 - 3] = 0;
    else if (code >= 30 && code <= 37) colors[0] = static_cast<std::uint32_t>(code - 29);
    else if (code >= 40 && code <= 47) colors[1] = static_cast<std::uint32_t>(code - 39);
    else if (code >= 90 && code <= 97) colors[0] = static_cast<std::uint32_t>(code - 81);
    else if (code >= 100 && code <= 107) colors[1] = static_cast<std::uint32_t>(code - 91);
    while (given.parts() > 0) (void)given.next();  // of a code that has none
  }
}

std::string Style::sequence(const Style& from) const {
  Style to = *this;
  Style old = from;
  to.link = old.link = 0;
  if (to == old) return {};
  if (to == Style{}) return "\033[m";
  std::string codes = old == Style{} ? "" : "0;";
  for (unsigned bit = 0; bit < 9; ++bit) {
    if ((attributes >> bit & 1U) != 0) codes += concat(bit + 1, ';');
  }
  if (underline == 1) codes += "4;";
  if (underline > 1) codes += concat("4:", static_cast<int>(underline), ';');
  if ((attributes >> 9U) != 0) codes += "53;";
  for (std::size_t i = 0; i < std::size(colors); ++i) {
    const std::uint32_t color = colors[i];
    const std::size_t base = 30 + 10 * i;
    if (color == 0) continue;
    if (color >> 24U != 0) {
      codes += concat(i == 2 ? 58 : base + 8, ";2;", color >> 16U & 0xFFU, ';', color >> 8U & 0xFFU, ';', color & 0xFFU,
                      ';');
    } else if (i == 2 || color > 16) {
      codes += concat(i == 2 ? 58 : base + 8, ";5;", color - 1, ';');
    } else {
      codes += concat(color + (color > 8 ? base + 51 : base - 1), ';');
    }
  }
  codes.back() = 'm';
  return concat("\033[", codes);
}

}  // namespace ddrun::logs
