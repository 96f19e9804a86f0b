#pragma once

#include <string>
#include <string_view>

namespace ddrun::logs {

/// What the writer that wrote last to a screen has done to it.
struct ScreenState {
  int above = 0;        ///< lines directly above the cursor's that are this writer's own
  int below = 0;        ///< and below it: the writer has gone up
  bool styled = false;  ///< its colours are on
  bool hidden = false;  ///< a worker has hidden the cursor
};

/// Appends to `out` what of a worker's `text` may reach a screen that it shares with others; `prefix` is what stands
/// before its lines. Of escape sequences
///  * colours and links pass, and what changes the present line;
///  * what would erase the prefix, or go to a column, counts from behind the prefix: it is written anew;
///  * going up and down ends at lines that others have written since, so that a block of several lines (Rich, tqdm) is
///    drawn in place while its worker writes alone, and again below once another has written;
///  * all others are left out: clearing the screen, absolute positions, scrolling, a second screen, titles, and
///  questions
///    to the terminal, whose answer would be typed to rank 0. So are sequences that are cut off.
void append_filtered(std::string& out, std::string_view text, std::string_view prefix, ScreenState& state);

}  // namespace ddrun::logs
