#pragma once

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::logs {

/// Characters that fit on a screen.
struct ScreenSize {
  unsigned short rows = 24;
  unsigned short columns = 80;
  /// What is left for a worker whose lines begin with a prefix of so many characters; at least 20 columns.
  [[nodiscard]] ScreenSize without_prefix(std::size_t prefix) const;
};

/// Of the terminal behind `fd`. If it is none, or does not know: what LINES and COLUMNS say, else 24 and 80.
[[nodiscard]] ScreenSize screen_size(int fd);

/// A terminal that one worker writes to and ddrun reads. It passes all bytes as they are, in both directions: no "\r"
/// is put before "\n", nothing is echoed.
///
/// What was written to the slave can be read from the master also when the slave is closed again, all of it; then a
/// read fails with EIO, as long as no process opens the slave. Closing the master hangs the terminal up: a process that
/// leads a session with it as controlling terminal gets SIGHUP.
struct PseudoTerminal {
  /// More than a pseudo-terminal holds of what was not yet read (22 KiB in Linux 6). FIONREAD tells only a part of it.
  static constexpr int capacity = 64 << 10;

  UniqueFd master;  ///< reads do not wait; kept from children
  UniqueFd slave;   ///< the worker's; not yet the controlling terminal of a process

  /// Fails with `unavailable`, with the system's error as cause: ENOENT or EACCES where there is no /dev/ptmx, ENOSPC
  /// when all are in use (kernel.pty.max), EMFILE.
  [[nodiscard]] static Result<PseudoTerminal> open(ScreenSize size);
};

/// Tells the terminal its new size. No signal follows: none of its processes is in the foreground (SpawnPlan).
void resize(const UniqueFd& master, ScreenSize size);

}  // namespace ddrun::logs
