#include "screen.hpp"

#include <algorithm>
#include <numeric>

#include "ddrun/base/text.hpp"

namespace ddrun::logs {

namespace {

/// To a row, at its first column.
std::string move(std::size_t from, std::size_t to) {
  if (from == to) return "\r";
  return from > to ? concat("\r\033[", from - to, 'A') : concat("\r\033[", to - from, 'B');
}

/// At the start of a row. No automatic margin: a text that the terminal takes for a longer one would take two rows.
/// Erased before it is written, since a cursor behind the last column would erase that.
std::string row_bytes(const std::string& text) { return concat("\033[K\033[?7l", text, "\033[?7h"); }

/// The cursor is where `last` left it.
std::string erase(const Screen& last, std::size_t columns, bool reflows) {
  if (last.rows.empty()) return {};
  const bool breaks = reflows && columns < last.columns;
  std::size_t above = breaks ? last.cursor_column / columns : 0;
  for (std::size_t i = 0; i < last.cursor_row; ++i) {
    above += breaks ? std::max<std::size_t>((last.rows[i].width + columns - 1) / columns, 1) : 1;
  }
  // To erase from the first line of a screen on would move it into the history of tmux.
  return move(above, 0) + "\033[K\0337\033[B\033[J\0338";
}

}  // namespace

std::string draw(const Screen& last, const Screen& wanted, bool reflows) {
  std::string bytes;
  std::size_t row = last.cursor_row;
  std::size_t column = last.cursor_column;
  const bool in_place = wanted.columns == last.columns && !last.rows.empty() &&
                        std::ranges::equal(wanted.rows, last.rows, {}, &Screen::Row::key, &Screen::Row::key);
  if (in_place) {
    for (std::size_t i = 0; i < wanted.rows.size(); ++i) {
      if (wanted.rows[i].text == last.rows[i].text) continue;
      bytes += move(row, i) + row_bytes(wanted.rows[i].text);
      row = i;
      column = wanted.rows[i].width;
    }
  } else {
    bytes = erase(last, wanted.columns, reflows);
    for (std::size_t i = 0; i < wanted.rows.size(); ++i)
      bytes += (i > 0 ? "\r\n" : "") + row_bytes(wanted.rows[i].text);
    row = wanted.rows.empty() ? 0 : wanted.rows.size() - 1;
    column = wanted.rows.empty() ? 0 : wanted.rows.back().width;
  }
  if (row != wanted.cursor_row || column != wanted.cursor_column) {
    bytes += move(row, wanted.cursor_row);
    if (wanted.cursor_column > 0) bytes += concat("\033[", wanted.cursor_column, 'C');
  }
  if (wanted.hides_cursor != last.hides_cursor) bytes += wanted.hides_cursor ? "\033[?25l" : "\033[?25h";
  return bytes;
}

std::vector<std::size_t> divide_rows(const std::vector<Demand>& demands, std::size_t room) {
  std::vector<std::size_t> given(demands.size(), 0);
  if (demands.size() > room) {
    std::vector<std::size_t> order(demands.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
      if (demands[a].is_first != demands[b].is_first) return demands[a].is_first;
      return demands[a].changed > demands[b].changed;
    });
    for (std::size_t i = 0; i + 1 < std::max<std::size_t>(room, 2); ++i) given[order[i]] = 1;
    return given;
  }
  for (bool gives = true; gives;) {
    gives = false;
    for (std::size_t i = 0; i < demands.size() && room > 0; ++i) {
      if (given[i] == demands[i].lines) continue;
      ++given[i];
      --room;
      gives = true;
    }
  }
  return given;
}

}  // namespace ddrun::logs
