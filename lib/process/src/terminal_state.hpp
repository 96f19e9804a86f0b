#pragma once

#include <termios.h>

#include <array>

namespace ddrun::process {

/// What standard input, output and error have in common with the user's shell, and a worker can leave changed: the
/// terminal's settings, and O_NONBLOCK. Blocks nowhere; what cannot be had or set is left as it is.
class TerminalState {
 public:
  /// Remembers both; the settings only while this process's group is the terminal's foreground group.
  void save();
  /// As saved, unless the terminal is another group's by now. A program that ends well may want its settings to stay,
  /// as stty does: `settings_too` is for one that did not.
  void restore(bool settings_too) const;
  /// After a stop, during which the shell had the terminal: saves it anew if it was as saved before.
  void save_again(bool was_unchanged) {
    if (was_unchanged && in_foreground(terminal_)) save();
  }

  [[nodiscard]] bool is_saved() const { return terminal_ >= 0; }
  [[nodiscard]] bool is_unchanged() const;

 private:
  [[nodiscard]] static bool in_foreground(int fd);

  int terminal_ = -1;  ///< descriptor; -1: none
  termios settings_{};
  std::array<int, 3> flags_{-1, -1, -1};  ///< of the open files of descriptors 0 to 2
};

}  // namespace ddrun::process
