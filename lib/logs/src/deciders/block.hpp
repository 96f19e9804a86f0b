#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddrun::logs {

/// Columns that a character takes: 0 (combining), 1, or 2 (East Asian wide, emoji). After EastAsianWidth.txt.
[[nodiscard]] int width_of(char32_t code);

/// Attributes and colours of characters (SGR), and their link.
struct Style {
  std::uint16_t attributes = 0;  ///< bit n: the attribute that SGR n + 1 switches on; bit 9: overlined
  std::uint8_t underline = 0;    ///< 1 to 5: single, double, curly, dotted, dashed
  std::uint32_t colors[3]{};     ///< foreground, background, underline; 0: default, 1 + index, or 2^24 + RGB
  std::uint32_t link = 0;        ///< a number that the owner knows; 0: none

  bool operator==(const Style&) const = default;
  /// A blank of this style is seen: it has a background or a line, or is inverse.
  [[nodiscard]] bool shows_blanks() const {
    return colors[1] != 0 || underline != 0 || (attributes & (1U << 6U | 1U << 8U | 1U << 9U)) != 0;
  }
  /// Applies the parameters of an SGR sequence.
  void apply(std::string_view parameters);
  /// The sequence that changes `from` to this style, without the link; empty if there is nothing to change.
  [[nodiscard]] std::string sequence(const Style& from) const;
};

/// Style and link with which a stream goes on.
struct Pen {
  Style style{};
  std::string link{};  ///< parameters and address of OSC 8
};

/// The last lines of a stream, as far as its cursor can still reach them: what a terminal would show. A line is as long
/// as its text; it does not wrap. A decider: it has no clock and no descriptor.
///
/// Of control sequences those count that change or move within these lines, show and hide the cursor, and set styles
/// and links. All others are left out, as are moves below or above.
class Block {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// `keeps_bytes`: a line that nothing was written over comes back as its bytes.
  explicit Block(Time now, bool keeps_bytes = false) : keeps_bytes_(keeps_bytes), lines_{Line{.reached = now}} {}

  /// As the program sees it.
  void set_size(int columns, int rows);
  /// The next bytes. A string sequence (a title, an image) ends with its line at the latest.
  void write(std::string_view bytes, Time now);
  void set_pen(const Pen& pen);
  [[nodiscard]] const Pen& pen() const { return pen_; }

  [[nodiscard]] std::size_t size() const { return lines_.size(); }
  [[nodiscard]] std::size_t cells() const;
  /// The number of the cursor's line, from 0, and its column.
  [[nodiscard]] std::size_t cursor_line() const { return line_; }
  [[nodiscard]] std::size_t cursor_column() const { return column_; }
  [[nodiscard]] bool hides_cursor() const { return hides_cursor_; }
  /// Nothing would be lost if the block were forgotten.
  [[nodiscard]] bool is_empty() const;
  /// The cursor has come back to the start of its line.
  [[nodiscard]] bool is_rewritten() const { return lines_[line_].rewritten; }

  /// When the cursor moved up last, and whether lines have been added since.
  [[nodiscard]] Time moved_up_at() const { return moved_up_at_; }
  [[nodiscard]] bool has_grown() const { return lines_.size() > size_at_move_; }
  /// When the first line was begun, or the cursor moved up to it or above it.
  [[nodiscard]] Time reached_at() const { return lines_.front().reached; }

  /// Lines that are not blank, and the last `count` of these as text with styles, without a newline; `columns` at most.
  [[nodiscard]] std::size_t shown_size() const;
  struct Shown {
    std::string text;
    std::size_t width;
    bool has_cursor;
  };
  [[nodiscard]] std::vector<Shown> shown(std::size_t count, std::size_t columns = SIZE_MAX) const;
  /// Removes the text of the cursor's line, also blanks at its end, and returns it.
  [[nodiscard]] std::string take_text();
  /// Removes the first line, which the cursor is not in, and returns its text.
  [[nodiscard]] std::string take_front();
  /// Lines that have left the program's terminal, since the last call.
  [[nodiscard]] std::vector<std::string> take_scrolled() { return std::exchange(scrolled_, {}); }

 private:
  struct Cell {
    char32_t code;  ///< 0: the right half of a wide character; beyond Unicode: a byte, or an index of clusters_
    Style style;
  };
  struct Line {
    std::vector<Cell> cells{};
    std::string bytes{};
    Time reached{};
    bool rewritten = false;     ///< has got '\r'
    bool written_over = false;  ///< is not `bytes` any more
  };
  /// Of the parser (ECMA-48, and xterm's control sequences).
  enum class State {
    text,
    escape,        ///< behind ESC
    intermediate,  ///< behind ESC and bytes from 0x20 to 0x2f
    sequence,      ///< in the parameters of a control sequence
    string,        ///< in a string sequence
    string_end,    ///< behind ESC in it
  };
  void take(char c, Time now);
  void take_text(char c);
  void begin_sequence(char introducer);
  void end_string();
  void apply_control(char c, Time now);
  void apply_sequence(char final, Time now);
  void put(char32_t code);
  void put_bytes();
  void combine(char32_t code);
  void erase(std::size_t first, std::size_t last);
  void move_up(std::size_t count, Time now);
  void move_down(std::size_t count, Time now);
  void set_link(std::string_view parameters);
  [[nodiscard]] static std::size_t visible_size(const Line& line);
  [[nodiscard]] std::string text_of(const Line& line, std::size_t size) const;

  const bool keeps_bytes_;
  std::vector<Line> lines_;
  std::vector<std::string> scrolled_;
  std::size_t line_ = 0;
  std::size_t column_ = 0;
  std::size_t columns_ = 80;
  std::size_t max_lines_ = 24;
  Pen pen_;
  std::vector<std::string> links_;     ///< number n of a style is links_[n - 1]
  std::vector<std::string> clusters_;  ///< characters with combining ones
  State state_ = State::text;
  char string_kind_ = '\0';
  std::string pending_;  ///< of a character, parameters or a string
  bool hides_cursor_ = false;
  Time moved_up_at_{};
  std::size_t size_at_move_ = 0;
};

}  // namespace ddrun::logs
