#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddrun::test {

/// A terminal after some output: what a VT100 or xterm of this size shows, and the lines that have left its top. It
/// takes UTF-8, and knows no code of ddrun.
///
/// Wide characters take two columns and combining ones none. The cursor stays on the last column until the next
/// character wraps. Strings (OSC, DCS, APC, PM, SOS and `ESC k`) are swallowed, and end at BEL, ST, CAN, SUB or ESC.
/// Scroll regions, character sets, a second screen, and queries have no effect.
class Screen {
 public:
  /// Colours: 0 by default, else one of the palette (`palette | n`), or `rgb | 0xRRGGBB`.
  struct Style {
    static constexpr std::uint32_t palette = 1U << 24U;
    static constexpr std::uint32_t rgb = 1U << 25U;
    std::uint32_t attributes = 0;  ///< bit n: that of SGR n (1 bold, 4 underlined, 7 inverse, and so on)
    std::uint32_t foreground = 0;
    std::uint32_t background = 0;
    bool operator==(const Style&) const = default;
  };
  struct Cell {
    std::string text = " ";  ///< a character with combining ones; empty in columns that it does not begin in
    Style style{};
    std::string link{};  ///< of OSC 8
    int width = 1;       ///< 0: the right half of a wide character
  };
  using Line = std::vector<Cell>;

  Screen(std::size_t columns, std::size_t rows) : columns_(columns), rows_(rows) {}

  /// Output; it may begin or end within a character or sequence.
  void write(std::string_view bytes);
  /// As by the user: the terminal echoes it.
  void type(std::string_view text);

  /// Each row, those that have left the screen first. Without lines and blanks at the end.
  [[nodiscard]] std::vector<std::string> lines() const;
  /// The same with wrapped rows joined; blanks at the end of each line are left out, whatever their style.
  [[nodiscard]] std::vector<Line> logical_lines() const;
  /// Number of rows that have left the screen.
  [[nodiscard]] std::size_t scrollback() const { return scrolled_.size(); }
  /// Row and column, from 0.
  [[nodiscard]] std::pair<std::size_t, std::size_t> cursor() const { return {row_, column_}; }

 private:
  struct Row {
    Line cells{};
    bool wrapped = false;  ///< goes on in the next
  };
  enum class State { ground, escape, escape_intermediate, control, string };

  void take(char32_t c);
  void take_control_character(char32_t c);
  void take_escape(char32_t c);
  void take_control_sequence(char32_t final);
  void end_string();
  void set_style(const std::vector<int>& codes);
  void put(char32_t c);
  void line_feed();
  void reverse_line_feed();
  void move(std::size_t row, std::size_t column);
  void scroll_up();
  void delete_row(std::size_t row);
  void insert_row(std::size_t row);
  [[nodiscard]] Cell blank() const;
  /// The cells of the row, as many as there are columns.
  [[nodiscard]] Line& filled(std::size_t row);
  void erase(std::size_t row, std::size_t from, std::size_t to);
  /// No wide character is left half on each side of this column.
  void split_wide(Line& cells, std::size_t column) const;

  std::size_t columns_;
  std::vector<Row> rows_;
  std::vector<Row> scrolled_;
  std::size_t row_ = 0;
  std::size_t column_ = 0;
  bool wrap_pending_ = false;
  bool wraps_ = true;
  Style style_;
  std::string link_;
  struct Saved {
    std::size_t row = 0;
    std::size_t column = 0;
    Style style;
  } saved_;
  State state_ = State::ground;
  std::string sequence_;  ///< parameters, or the contents of a string with its first character
  char32_t code_point_ = 0;
  int bytes_missing_ = 0;  ///< of the code point
};

/// The text of a line.
[[nodiscard]] std::string plain(const Screen::Line& line);
/// The same with "{SGR parameters}", and the link behind a blank, where a style begins: "{1;31}text{}".
[[nodiscard]] std::string styled(const Screen::Line& line);

}  // namespace ddrun::test
