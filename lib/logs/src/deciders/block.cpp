#include "block.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <span>
#include <utility>

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

/// Codes from here on are no characters: bytes that are not UTF-8, then clusters.
constexpr char32_t first_byte = 0x110000;
constexpr char32_t first_cluster = first_byte + 256;
constexpr std::size_t max_clusters = 4096;
constexpr std::size_t max_pending_bytes = 4096;
constexpr std::size_t max_kept_bytes = std::size_t{64} << 10U;
constexpr std::size_t tab_width = 8;
constexpr char escape = '\033';

bool is_between(char c, int first, int last) {
  const int byte = static_cast<unsigned char>(c);
  return byte >= first && byte <= last;
}

/// The beginning of a character whose other bytes may follow.
bool is_cut_character(std::string_view text) {
  const char lead = text.front();
  const std::size_t size = is_between(lead, 0xF0, 0xF4)   ? 4
                           : is_between(lead, 0xE0, 0xEF) ? 3
                           : is_between(lead, 0xC2, 0xDF) ? 2
                                                          : 1;
  return text.size() < size &&
         std::all_of(text.begin() + 1, text.end(), [](char c) { return is_between(c, 0x80, 0xBF); });
}

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

void Block::set_size(int columns, int rows) {
  columns_ = static_cast<std::size_t>(std::max(columns, 1));
  max_lines_ = static_cast<std::size_t>(std::max(rows, 1));
}

void Block::set_pen(const Pen& pen) {
  pen_.style = pen.style;
  set_link(pen.link);
}

void Block::write(std::string_view bytes, Time now) {
  for (const char c : bytes) {
    Line& line = lines_[line_];
    if (keeps_bytes_ && !line.written_over && c != '\n') line.bytes += c;
    line.written_over = line.written_over || line.bytes.size() > max_kept_bytes;
    take(c, now);
  }
}

// ---- the parser

void Block::take(char c, Time now) {
  const bool ends_all = c == '\n' || c == '\x18' || c == '\x1a';
  if (state_ == State::text && (ends_all || is_between(c, 0, 0x1f) || c == '\x7f')) put_bytes();
  if (ends_all) {
    state_ = State::text;
    pending_.clear();
    return apply_control(c, now);
  }
  if (c == escape) {
    state_ = state_ == State::string ? State::string_end : State::escape;
    return;
  }
  switch (state_) {
    case State::text: return is_between(c, 0, 0x1f) ? apply_control(c, now) : take_text(c);
    case State::escape: return begin_sequence(c);
    case State::intermediate:
      if (!is_between(c, 0x20, 0x2f)) state_ = State::text;
      return;
    case State::sequence:
      if (is_between(c, 0x20, 0x3f) && pending_.size() < max_pending_bytes) {
        pending_ += c;
        return;
      }
      if (is_between(c, 0x40, 0x7e)) apply_sequence(c, now);
      else apply_control(c, now);
      state_ = State::text;
      pending_.clear();
      return;
    case State::string:
      if (c == '\a') return end_string();
      if (pending_.size() < max_pending_bytes) pending_ += c;
      if (pending_.ends_with("\xc2\x9c")) pending_.resize(pending_.size() - 2), end_string();
      return;
    case State::string_end: return c == '\\' ? end_string() : begin_sequence(c);
  }
}

void Block::take_text(char c) {
  if (c == '\x7f') return;
  if (is_between(c, 0x20, 0x7e)) {
    put_bytes();
    return put(static_cast<char32_t>(c));
  }
  pending_ += c;
  if (utf8_size(pending_, 0) > 0) {
    const char32_t code = decode_utf8(std::exchange(pending_, {}));
    return code < 0xA0 ? begin_sequence(static_cast<char>(code - 0x40)) : put(code);
  }
  if (is_cut_character(pending_)) return;
  pending_.pop_back();
  put_bytes();
  pending_ = c;
  if (!is_cut_character(pending_)) put_bytes();
}

/// `introducer` is the character behind ESC.
void Block::begin_sequence(char introducer) {
  pending_.clear();
  string_kind_ = introducer;
  state_ = State::text;
  if (introducer == '[') state_ = State::sequence;
  else if (std::string_view("]PX^_k").find(introducer) != std::string_view::npos) state_ = State::string;
  else if (is_between(introducer, 0x20, 0x2f)) state_ = State::intermediate;
}

void Block::end_string() {
  state_ = State::text;
  const std::string content = std::exchange(pending_, {});
  if (string_kind_ == ']' && content.starts_with("8;")) set_link(content.substr(2));
}

void Block::apply_control(char c, Time now) {
  if (c == '\n') move_down(1, now);
  if (c == '\n' || c == '\r') column_ = 0;
  if (c == '\r') lines_[line_].rewritten = true;
  if (c == '\b') lines_[line_].written_over = true;
  if (c == '\b' && column_ > 0) --column_;
  if (c == '\t') column_ = std::max(column_, std::min(column_ / tab_width * tab_width + tab_width, columns_ - 1));
}

void Block::apply_sequence(char final, Time now) {
  std::vector<Cell>& cells = lines_[line_].cells;
  const int given = std::atoi(pending_.substr(0, 9).c_str());
  const auto number = static_cast<std::size_t>(std::max(given, 1));
  if (final != 'm') lines_[line_].written_over = true;
  switch (final) {
    case 'm': pen_.style.apply(pending_); break;
    case 'A':
    case 'F': move_up(number, now); break;
    case 'B':
    case 'E': move_down(std::min(number, max_lines_ - std::min(max_lines_, line_ + 1)), now); break;
    case 'C': column_ = std::max(column_, std::min(column_ + number, columns_ - 1)); break;
    case 'D': column_ -= std::min(column_, number); break;
    case 'G':
    case '`': column_ = std::min(number, columns_) - 1; break;
    case 'J':
      if (given != 0) break;
      for (std::size_t i = line_ + 1; i < lines_.size(); ++i) lines_[i].cells.clear();
      erase(column_, cells.size());
      break;
    case 'K': erase(given == 0 ? column_ : 0, given == 1 ? column_ + 1 : cells.size()); break;
    case 'X': erase(column_, column_ + number); break;
    case 'P':
    case '@': {
      if (column_ >= cells.size()) break;
      erase(column_, column_);  // the halves of a wide character
      const auto at = cells.begin() + static_cast<std::ptrdiff_t>(column_);
      const std::size_t count = std::min(number, final == 'P' ? cells.size() - column_ : columns_);
      if (final == 'P') cells.erase(at, at + static_cast<std::ptrdiff_t>(count));
      else cells.insert(at, count, Cell{U' ', {}});
      break;
    }
    case 'h':
    case 'l':
      if (pending_ == "?25") hides_cursor_ = final == 'l';
      break;
    default: break;
  }
  if (final == 'E' || final == 'F') column_ = 0;
}

// ---- the lines

/// Bytes that are no character. A terminal takes some of them for control characters: they are replaced when shown.
void Block::put_bytes() {
  for (const char c : std::exchange(pending_, {})) put(first_byte + static_cast<unsigned char>(c));
}

void Block::put(char32_t code) {
  std::vector<Cell>& cells = lines_[line_].cells;
  lines_[line_].written_over = lines_[line_].written_over || lines_[line_].rewritten;
  const auto width = static_cast<std::size_t>(width_of(code));
  if (width == 0) return combine(code);
  erase(column_, column_ + width);
  if (cells.size() < column_ + width) cells.resize(column_ + width, Cell{U' ', {}});
  cells[column_++] = {code, pen_.style};
  if (width == 2) cells[column_++] = {0, pen_.style};
}

void Block::combine(char32_t code) {
  std::vector<Cell>& cells = lines_[line_].cells;
  std::size_t at = std::min(column_, cells.size());
  if (at > 0 && cells[at - 1].code == 0) --at;
  if (at == 0) return;
  char32_t& base = cells[at - 1].code;
  std::string cluster;
  if (base >= first_cluster) cluster = clusters_[base - first_cluster];
  else append_utf8(cluster, base);
  append_utf8(cluster, code);
  const auto known = std::ranges::find(clusters_, cluster);
  if (known == clusters_.end() && clusters_.size() >= max_clusters) return;
  base = first_cluster + static_cast<char32_t>(known - clusters_.begin());
  if (known == clusters_.end()) clusters_.push_back(std::move(cluster));
}

/// Cells from `first` to before `last` become blank, with the background of the pen; halves of wide characters at both
/// ends too.
void Block::erase(std::size_t first, std::size_t last) {
  std::vector<Cell>& cells = lines_[line_].cells;
  last = std::min(last, cells.size());
  if (first > 0 && first < cells.size() && cells[first].code == 0)
    cells[first - 1].code = U' ', cells[first].code = U' ';
  if (last > first && last < cells.size() && cells[last].code == 0) cells[last].code = U' ';
  Style blank;
  blank.colors[1] = pen_.style.colors[1];
  for (std::size_t i = first; i < last; ++i) cells[i] = {U' ', blank};
}

void Block::move_up(std::size_t count, Time now) {
  line_ -= std::min(count, line_);
  for (std::size_t i = line_; i < lines_.size(); ++i) {
    lines_[i].reached = now;
    lines_[i].written_over = true;
  }
  moved_up_at_ = now;
  size_at_move_ = lines_.size();
}

void Block::move_down(std::size_t count, Time now) {
  for (line_ += count; line_ >= lines_.size();) lines_.push_back({.reached = now});
  while (lines_.size() > max_lines_ && line_ > 0) scrolled_.push_back(take_front());
}

void Block::set_link(std::string_view parameters) {
  pen_.link = parameters.ends_with(';') ? std::string_view() : parameters;
  pen_.style.link = 0;
  if (pen_.link.empty() || links_.size() >= max_clusters) return;
  const auto known = std::find(links_.begin(), links_.end(), pen_.link);
  pen_.style.link = static_cast<std::uint32_t>(known - links_.begin()) + 1;
  if (known == links_.end()) links_.push_back(pen_.link);
}

std::size_t Block::visible_size(const Line& line) {
  const auto is_seen = [](const Cell& cell) { return cell.code != U' ' || cell.style.shows_blanks(); };
  const auto last = std::find_if(line.cells.rbegin(), line.cells.rend(), is_seen);
  return static_cast<std::size_t>(line.cells.rend() - last);
}

bool Block::is_empty() const {
  return line_ == 0 && column_ == 0 && state_ == State::text && pending_.empty() && !hides_cursor_ &&
         std::ranges::all_of(lines_, [](const Line& line) { return visible_size(line) == 0; });
}

std::size_t Block::cells() const {
  std::size_t cells = 0;
  for (const Line& line : lines_) cells += line.cells.size();
  return cells;
}

std::size_t Block::shown_size() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(lines_, [](const Line& line) { return visible_size(line) > 0; }));
}

std::vector<Block::Shown> Block::shown(std::size_t count, std::size_t columns) const {
  std::vector<Shown> shown;
  for (std::size_t i = lines_.size(); i-- > 0 && shown.size() < count;) {
    const std::vector<Cell>& cells = lines_[i].cells;
    std::size_t width = visible_size(lines_[i]);
    if (width == 0) continue;
    if (i == line_) width = std::max(width, std::min(column_, cells.size()));  // the blank behind a prompt
    width = std::min(width, columns);
    if (width < cells.size() && cells[width].code == 0) --width;  // half of a wide character
    shown.push_back({text_of(lines_[i], width), width, i == line_});
  }
  std::reverse(shown.begin(), shown.end());
  return shown;
}

std::string Block::take_text() {
  std::vector<Cell>& cells = lines_[line_].cells;
  std::string text = text_of(lines_[line_], cells.size());
  cells.clear();
  column_ = 0;
  return text;
}

std::string Block::take_front() {
  std::string text = text_of(lines_.front(), visible_size(lines_.front()));
  lines_.erase(lines_.begin());
  --line_;
  if (size_at_move_ > 0) --size_at_move_;
  return text;
}

std::string Block::text_of(const Line& line, std::size_t size) const {
  if (keeps_bytes_ && !line.written_over) return line.bytes;
  std::string text;
  Style last;
  const auto change_to = [&](const Style& style) {
    if (style.link != last.link) {
      text += concat("\033]8;", style.link == 0 ? std::string_view(";") : links_[style.link - 1], "\033\\");
    }
    text += style.sequence(last);
    last = style;
  };
  for (std::size_t i = 0; i < size; ++i) {
    const Cell& cell = line.cells[i];
    if (cell.code == 0) continue;
    if (cell.style != last) change_to(cell.style);
    if (cell.code >= first_cluster) text += clusters_[cell.code - first_cluster];
    else if (cell.code >= first_byte + 0xA0) text += static_cast<char>(cell.code - first_byte);
    else if (cell.code >= first_byte) text += replacement_character;
    else append_utf8(text, cell.code);
  }
  if (last != Style{}) change_to(Style{});
  return text;
}

}  // namespace ddrun::logs
