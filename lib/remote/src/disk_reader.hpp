#pragma once

#include "ddrun/base/result.hpp"
#include "ddrun/base/unique_fd.hpp"

namespace ddrun::remote {

/// Whether it is a regular file. Does not block: its disk is not asked, which may hang.
[[nodiscard]] bool is_file(int fd);

/// Reads `file` from where its position is, on a thread of its own, so that a disk that hangs holds up that thread
/// alone. Returns the end of a pipe, non-blocking, in which it comes: the thread reads on while the pipe has room. At
/// the end of the file, and where it cannot be read, the pipe ends. Once the returned end is closed the thread ends;
/// nobody waits for one in a read that hangs. `file` is borrowed and not closed, which may hang, too. Fails with
/// `unavailable` where the system has no descriptors or threads left.
[[nodiscard]] Result<UniqueFd> read_by_thread(int file);

}  // namespace ddrun::remote
