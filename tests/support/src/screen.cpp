#include "ddrun/test/screen.hpp"

#include <locale.h>
#include <wchar.h>

#include <algorithm>
#include <cstdlib>

namespace ddrun::test {

namespace {

constexpr char32_t replacement = 0xfffd;

int width_of(char32_t c) {
  static const locale_t utf8 = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const locale_t before = ::uselocale(utf8);
  const int width = ::wcwidth(static_cast<wchar_t>(c));
  ::uselocale(before);
  return width < 0 ? 1 : width;
}

std::string encode(char32_t c) {
  const auto next = [c](unsigned shift) { return static_cast<char>(0x80U | (c >> shift & 0x3fU)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0U | c >> 6U), next(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0U | c >> 12U), next(6), next(0)};
  return {static_cast<char>(0xf0U | c >> 18U), next(12), next(6), next(0)};
}

/// Numbers between ';' or ':'; -1 where there is none.
std::vector<int> numbers(std::string_view parameters) {
  std::vector<int> all{-1};
  for (const char c : parameters) {
    if (c == ';' || c == ':') all.push_back(-1);
    else if (c >= '0' && c <= '9') all.back() = std::min(std::max(all.back(), 0) * 10 + (c - '0'), 9999);
  }
  return all;
}

void cut_blanks(Screen::Line& line) {
  const auto is_text = [](const Screen::Cell& cell) { return !cell.text.empty() && cell.text != " "; };
  const auto last = std::find_if(line.rbegin(), line.rend(), is_text);
  line.erase(last.base(), line.end());
}

std::string describe_color(std::uint32_t color, int base) {
  const auto part = [&](unsigned shift) { return std::to_string((color >> shift) & 0xffU); };
  if ((color & Screen::Style::rgb) != 0) {
    return std::to_string(base + 8) + ";2;" + part(16) + ";" + part(8) + ";" + part(0);
  }
  const int number = static_cast<int>(color & 0xffU);
  if (number < 8) return std::to_string(base + number);
  if (number < 16) return std::to_string(base + 60 + number - 8);
  return std::to_string(base + 8) + ";5;" + std::to_string(number);
}

std::string describe_style(const Screen::Cell& cell) {
  std::string codes;
  const auto add = [&](const std::string& code) { codes += (codes.empty() ? "" : ";") + code; };
  for (int bit = 1; bit < 32; ++bit) {
    if ((cell.style.attributes >> bit & 1U) != 0) add(std::to_string(bit));
  }
  if (cell.style.foreground != 0) add(describe_color(cell.style.foreground, 30));
  if (cell.style.background != 0) add(describe_color(cell.style.background, 40));
  return cell.link.empty() ? codes : codes + " " + cell.link;
}

}  // namespace

// ---- bytes

void Screen::write(std::string_view bytes) {
  for (const char each : bytes) {
    const auto byte = static_cast<unsigned char>(each);
    if (bytes_missing_ > 0) {
      if ((byte & 0xc0U) == 0x80) {
        code_point_ = code_point_ << 6U | (byte & 0x3fU);
        if (--bytes_missing_ == 0) take(code_point_);
        continue;
      }
      bytes_missing_ = 0;
      take(replacement);
    }
    if (byte < 0x80) take(byte);
    else if (byte >= 0xc2 && byte < 0xe0) code_point_ = byte & 0x1fU, bytes_missing_ = 1;
    else if (byte >= 0xe0 && byte < 0xf0) code_point_ = byte & 0x0fU, bytes_missing_ = 2;
    else if (byte >= 0xf0 && byte < 0xf5) code_point_ = byte & 0x07U, bytes_missing_ = 3;
    else take(replacement);
  }
}

void Screen::type(std::string_view text) {
  for (const char c : text) c == '\n' ? write("\r\n") : put(static_cast<unsigned char>(c));
}

void Screen::take(char32_t c) {
  if (c >= 0x80 && c < 0xa0) {  // C1: the same as these two
    take(0x1b);
    return take(c - 0x40);
  }
  if (c == 0x18 || c == 0x1a) {
    state_ = State::ground;
  } else if (c == 0x1b) {
    if (state_ == State::string) end_string();
    state_ = State::escape;
  } else if (state_ == State::string) {
    if (c == 0x07) end_string();
    else sequence_ += encode(c);
  } else if (c < 0x20) {
    take_control_character(c);
  } else if (state_ == State::ground) {
    if (c != 0x7f) put(c);
  } else if (state_ == State::escape) {
    take_escape(c);
  } else if (state_ == State::escape_intermediate) {
    if (c >= 0x30) state_ = State::ground;
  } else if (c >= 0x40) {
    state_ = State::ground;
    take_control_sequence(c);
  } else {
    sequence_ += encode(c);
  }
}

void Screen::take_control_character(char32_t c) {
  switch (c) {
    case '\n':
    case '\v':
    case '\f': line_feed(); break;
    case '\r': move(row_, 0); break;
    case '\b': move(row_, column_ - std::min<std::size_t>(column_, 1)); break;
    case '\t': move(row_, (column_ / 8 + 1) * 8); break;
    default: break;
  }
}

void Screen::take_escape(char32_t c) {
  state_ = State::ground;
  sequence_.clear();
  if (c < 0x30) state_ = State::escape_intermediate;
  switch (c) {
    case '[': state_ = State::control; break;
    case ']':
    case 'P':
    case 'X':
    case '^':
    case '_':
    case 'k':
      state_ = State::string;
      sequence_ = encode(c);
      break;
    case '7': saved_ = {row_, column_, style_}; break;
    case '8':
      move(saved_.row, saved_.column);
      style_ = saved_.style;
      break;
    case 'D': line_feed(); break;
    case 'E':
      line_feed();
      column_ = 0;
      break;
    case 'M': reverse_line_feed(); break;
    case 'c': {
      std::vector<Row> scrolled = std::move(scrolled_);
      *this = Screen(columns_, rows_.size());
      scrolled_ = std::move(scrolled);
      break;
    }
    default: break;
  }
}

void Screen::end_string() {
  state_ = State::ground;
  if (sequence_.starts_with("]8;") && sequence_.find(';', 3) != std::string::npos) {
    link_ = sequence_.substr(sequence_.find(';', 3) + 1);
  }
}

void Screen::take_control_sequence(char32_t final) {
  const bool is_private = sequence_.find_first_of("<=>?") == 0;
  if (is_private) {
    if (sequence_ == "?7" && (final == 'h' || final == 'l')) wraps_ = final == 'h';
    return;
  }
  if (sequence_.find_first_of(" !\"#$%&'()*+,-./<=>?") != std::string::npos) return;
  const std::vector<int> given = numbers(sequence_);
  const auto parameter = [&](std::size_t i, int otherwise) {
    return static_cast<std::size_t>(i < given.size() && given[i] >= otherwise ? given[i] : otherwise);
  };
  const std::size_t count = parameter(0, 1);
  const std::size_t last_row = rows_.size() - 1;
  const std::size_t up = row_ - std::min(row_, count);
  switch (final) {
    case 'A': move(up, column_); break;
    case 'B': move(row_ + count, column_); break;
    case 'C': move(row_, column_ + count); break;
    case 'D': move(row_, column_ - std::min(column_, count)); break;
    case 'E': move(row_ + count, 0); break;
    case 'F': move(up, 0); break;
    case 'G': move(row_, count - 1); break;
    case 'd': move(count - 1, column_); break;
    case 'H':
    case 'f': move(count - 1, parameter(1, 1) - 1); break;
    case 'J':
      if (parameter(0, 0) == 3) return scrolled_.clear();
      for (std::size_t row = 0; row <= last_row; ++row) {
        if (parameter(0, 0) == 2 || (parameter(0, 0) == 0 ? row > row_ : row < row_)) erase(row, 0, columns_);
      }
      [[fallthrough]];
    case 'K':
      if (parameter(0, 0) <= 2) {
        erase(row_, parameter(0, 0) == 0 ? column_ : 0, parameter(0, 0) == 1 ? column_ + 1 : columns_);
      }
      wrap_pending_ = false;
      break;
    case 'L':
      for (std::size_t i = 0; i < std::min(count, rows_.size()); ++i) insert_row(row_);
      move(row_, 0);
      break;
    case 'M':
      for (std::size_t i = 0; i < std::min(count, rows_.size()); ++i) delete_row(row_);
      move(row_, 0);
      break;
    case 'P':
    case '@': {
      Line& cells = filled(row_);
      const std::size_t many = std::min(count, columns_ - column_);
      const auto size = static_cast<std::ptrdiff_t>(many);
      const auto at = cells.begin() + static_cast<std::ptrdiff_t>(column_);
      split_wide(cells, column_);
      if (final == 'P') {
        split_wide(cells, column_ + many);
        std::rotate(at, at + size, cells.end());
        std::fill(cells.end() - size, cells.end(), blank());
      } else {
        split_wide(cells, columns_ - many);
        std::rotate(at, cells.end() - size, cells.end());
        std::fill(at, at + size, blank());
      }
      wrap_pending_ = false;
      break;
    }
    case 'X':
      erase(row_, column_, column_ + count);
      wrap_pending_ = false;
      break;
    case 'S':
      for (std::size_t i = 0; i < std::min(count, rows_.size()); ++i) scroll_up();
      break;
    case 'T':
      for (std::size_t i = 0; i < std::min(count, rows_.size()); ++i) insert_row(0);
      break;
    case 'm': set_style(given); break;
    case 's': saved_ = {row_, column_, style_}; break;
    case 'u': move(saved_.row, saved_.column); break;
    default: break;
  }
}

void Screen::set_style(const std::vector<int>& codes) {
  const auto clear = [&](std::uint32_t bits) { style_.attributes &= ~bits; };
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const int code = std::max(codes[i], 0);
    const auto number = static_cast<std::uint32_t>(code);
    const auto value = [&](std::size_t at) {
      return at < codes.size() ? static_cast<std::uint32_t>(std::max(codes[at], 0)) & 0xffU : 0U;
    };
    if (code == 0) style_ = {};
    else if (code < 10 || code == 21) style_.attributes |= 1U << number;
    else if (code == 22) clear(1U << 1U | 1U << 2U);
    else if (code == 24) clear(1U << 4U | 1U << 21U);
    else if (code >= 23 && code < 30) clear(1U << (number - 20U));
    else if (code >= 30 && code < 38) style_.foreground = Style::palette | (number - 30);
    else if (code >= 90 && code < 98) style_.foreground = Style::palette | (number - 90 + 8);
    else if (code >= 40 && code < 48) style_.background = Style::palette | (number - 40);
    else if (code >= 100 && code < 108) style_.background = Style::palette | (number - 100 + 8);
    else if (code == 39) style_.foreground = 0;
    else if (code == 49) style_.background = 0;
    else if (code == 38 || code == 48 || code == 58) {
      const bool is_rgb = value(i + 1) == 2;
      const std::uint32_t color =
          is_rgb ? Style::rgb | value(i + 2) << 16U | value(i + 3) << 8U | value(i + 4) : Style::palette | value(i + 2);
      if (code == 38) style_.foreground = color;
      if (code == 48) style_.background = color;
      i += is_rgb ? 4 : 2;
    }
  }
}

// ---- cells

void Screen::put(char32_t c) {
  const auto width = static_cast<std::size_t>(width_of(c));
  if (width == 0) {
    // It joins the character before the cursor.
    std::size_t at = wrap_pending_ ? column_ : column_ - std::min<std::size_t>(column_, 1);
    Line& cells = filled(row_);
    if (at > 0 && cells[at].width == 0) --at;
    if (column_ > 0) cells[at].text += encode(c);
    return;
  }
  if (width > columns_) return;
  const bool fits = !wrap_pending_ && column_ + width <= columns_;
  if (!fits && wraps_) {
    Line& cells = filled(row_);
    for (std::size_t i = column_; !wrap_pending_ && i < columns_; ++i) {
      split_wide(cells, i);
      cells[i] = blank();
      cells[i].text.clear();
    }
    rows_[row_].wrapped = true;
    line_feed();
    column_ = 0;
  }
  wrap_pending_ = false;
  column_ = std::min(column_, columns_ - width);
  Line& cells = filled(row_);
  split_wide(cells, column_);
  split_wide(cells, column_ + width);
  cells[column_] = {encode(c), style_, link_, static_cast<int>(width)};
  if (width == 2) cells[column_ + 1] = {"", style_, link_, 0};
  column_ += width;
  if (column_ == columns_) {
    --column_;
    wrap_pending_ = wraps_;
  }
}

void Screen::line_feed() {
  wrap_pending_ = false;
  if (row_ + 1 < rows_.size()) ++row_;
  else scroll_up();
}

void Screen::reverse_line_feed() {
  wrap_pending_ = false;
  if (row_ > 0) --row_;
  else insert_row(0);
}

void Screen::move(std::size_t row, std::size_t column) {
  row_ = std::min(row, rows_.size() - 1);
  column_ = std::min(column, columns_ - 1);
  wrap_pending_ = false;
}

void Screen::scroll_up() {
  scrolled_.push_back(rows_.front());
  delete_row(0);
}

void Screen::delete_row(std::size_t row) {
  rows_.erase(rows_.begin() + static_cast<std::ptrdiff_t>(row));
  rows_.emplace_back();
  erase(rows_.size() - 1, 0, columns_);
}

void Screen::insert_row(std::size_t row) {
  rows_.pop_back();
  rows_.emplace(rows_.begin() + static_cast<std::ptrdiff_t>(row));
  erase(row, 0, columns_);
}

Screen::Cell Screen::blank() const {
  Cell cell;
  cell.style.background = style_.background;
  return cell;
}

Screen::Line& Screen::filled(std::size_t row) {
  rows_[row].cells.resize(columns_);
  return rows_[row].cells;
}

void Screen::erase(std::size_t row, std::size_t from, std::size_t to) {
  Line& cells = filled(row);
  to = std::min(to, columns_);
  split_wide(cells, from);
  split_wide(cells, to);
  std::fill(cells.begin() + static_cast<std::ptrdiff_t>(from), cells.begin() + static_cast<std::ptrdiff_t>(to),
            blank());
  if (to == columns_) rows_[row].wrapped = false;
}

void Screen::split_wide(Line& cells, std::size_t column) const {
  if (column == 0 || column >= columns_ || cells[column].width > 0) return;
  cells[column - 1] = cells[column] = blank();
}

// ---- lines

std::vector<std::string> Screen::lines() const {
  std::vector<std::string> all;
  for (const std::vector<Row>* rows : {&scrolled_, &rows_}) {
    for (const Row& row : *rows) {
      Line cells = row.cells;
      cut_blanks(cells);
      all.push_back(plain(cells));
    }
  }
  while (!all.empty() && all.back().empty()) all.pop_back();
  return all;
}

std::vector<Screen::Line> Screen::logical_lines() const {
  std::vector<Line> all(1);
  for (const std::vector<Row>* rows : {&scrolled_, &rows_}) {
    for (const Row& row : *rows) {
      all.back().insert(all.back().end(), row.cells.begin(), row.cells.end());
      if (!row.wrapped) all.emplace_back();
    }
  }
  for (Line& line : all) cut_blanks(line);
  while (!all.empty() && all.back().empty()) all.pop_back();
  return all;
}

std::string plain(const Screen::Line& line) {
  std::string text;
  for (const Screen::Cell& cell : line) text += cell.text;
  return text;
}

std::string styled(const Screen::Line& line) {
  std::string text;
  std::string style;
  for (const Screen::Cell& cell : line) {
    if (cell.text.empty()) continue;
    if (std::string next = describe_style(cell); next != style) {
      style = std::move(next);
      text += '{' + style + '}';
    }
    text += cell.text;
  }
  return text;
}

}  // namespace ddrun::test
