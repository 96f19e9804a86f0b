#pragma once

#include <string>
#include <string_view>

namespace ddrun::logs {

/// Terminal state that the last writer has left.
struct ScreenState {
  int above = 0;        ///< lines directly above the cursor that this writer has written
  int below = 0;        ///< the same below the cursor, after it has moved up
  bool styled = false;  ///< its colours are on
  bool hidden = false;  ///< a worker has hidden the cursor
};

/// Appends to `out` the part of a worker's `text` that is safe on a screen with other writers; `prefix` is that of its
/// lines. Of escape sequences
///  * colours, links and changes of the present line pass;
///  * erasing the line and moving to a column count from behind the prefix, which is written again;
///  * moves up and down are limited to lines that this writer has written last, so that a block of several lines (Rich,
///    tqdm) is redrawn in place while its worker writes alone, and again below once another has written;
///  * all others are dropped, as are incomplete ones: clearing the screen, absolute positions, scrolling, a second
///    screen, titles, and queries to the terminal, whose answer would be input of rank 0.
void append_filtered(std::string& out, std::string_view text, std::string_view prefix, ScreenState& state);

/// Whether a text has escape sequences that move the cursor to other lines or columns, or erase more than its own line.
[[nodiscard]] bool moves_cursor(std::string_view text);
/// A text that moves_cursor() denies, with its colours and links only.
[[nodiscard]] std::string without_erasing(std::string_view text);

}  // namespace ddrun::logs
