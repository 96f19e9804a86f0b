#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddrun::logs {

/// The lower end of a terminal: rows that change, below finished lines. Empty: the cursor is at the start of a line.
struct Screen {
  struct Row {
    std::uint64_t key = 0;  ///< rows with the same keys in the same order are redrawn in place
    std::string text{};     ///< complete in itself: styles are switched off at its end
    std::size_t width = 0;  ///< in columns
  };
  std::vector<Row> rows{};
  std::size_t cursor_row = 0;
  std::size_t cursor_column = 0;
  std::size_t columns = 80;
  bool hides_cursor = false;
};

/// Bytes that change a terminal that shows `last` to `wanted`. `reflows`: when its width changes, the terminal breaks
/// lines anew, as tmux does; else it cuts them, as xterm does.
[[nodiscard]] std::string draw(const Screen& last, const Screen& wanted, bool reflows);

/// How many lines of a group are shown.
struct Demand {
  std::uint64_t changed = 0;  ///< greater: later
  std::size_t lines = 0;
  bool is_first = false;  ///< before all others
};
/// Divides `room` rows among groups of lines: as evenly as possible; if there is not one for each, those that changed
/// last get one, and one is left for the number of the others. Returns the number for each group.
[[nodiscard]] std::vector<std::size_t> divide_rows(const std::vector<Demand>& demands, std::size_t room);

}  // namespace ddrun::logs
