#pragma once

#include <termios.h>

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::logs {

/// Size of a terminal in characters.
struct ScreenSize {
  unsigned short rows = 24;
  unsigned short columns = 80;
  /// The size for a worker whose lines begin with a prefix of so many columns; at least 20 columns.
  [[nodiscard]] ScreenSize without_prefix(std::size_t prefix) const;
};

/// The size of the terminal `fd`. If it is no terminal, or has no size: LINES and COLUMNS, else 24 and 80.
[[nodiscard]] ScreenSize screen_size(int fd);

/// A terminal that one worker writes to and ddrun reads. Output passes unchanged, without "\r" before "\n".
///
/// All that was written to the slave can be read from the master after the slave is closed; then a read fails with EIO
/// while no process has the slave open. Closing the master hangs up the terminal: the leader of a session that has it
/// as controlling terminal gets SIGHUP.
struct PseudoTerminal {
  /// An upper bound of the unread bytes in a pseudo-terminal (22 KiB in Linux 6). FIONREAD counts only a part of them.
  static constexpr int capacity = 64 << 10;

  UniqueFd master;  ///< non-blocking, close-on-exec
  UniqueFd slave;   ///< for the worker; not yet the controlling terminal of a process

  /// Fails with `unavailable`, with the system's error as cause: ENOENT or EACCES where there is no /dev/ptmx, ENOSPC
  /// when all are in use (kernel.pty.max), EMFILE.
  /// `input`: the settings for a worker that reads from it; null: input passes unchanged, without echo.
  [[nodiscard]] static Result<PseudoTerminal> open(ScreenSize size, const termios* input = nullptr);
};

/// Sets the terminal's size. If that changes it, the kernel sends SIGWINCH to the terminal's foreground group, which is
/// empty unless a worker reads from it (SpawnPlan).
void resize(const UniqueFd& master, ScreenSize size);

}  // namespace ddrun::logs
