#pragma once

#include <termios.h>

#include <array>

namespace ddrun::process {

/// State of standard input, output and error that is shared with the user's shell and that a worker can leave changed:
/// the terminal's settings, and O_NONBLOCK. Does not block; failures are ignored.
class TerminalState {
 public:
  /// Saves both; the settings only if this process's group is the terminal's foreground group.
  void save();
  /// Restores O_NONBLOCK, and with `settings_too` the settings, unless the terminal belongs to another group now. Only
  /// after a failure: a program that succeeds may want its settings to stay, as stty does.
  void restore(bool settings_too) const;
  /// After a stop, in which the shell may have changed the settings: saves them if they were unchanged before it.
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
