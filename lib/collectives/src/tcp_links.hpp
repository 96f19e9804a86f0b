#pragma once

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/collectives/communicator.hpp"

namespace ddrun::collectives {

/// This rank's two connections in the ring; both non-blocking, close-on-exec, without Nagle's delay.
struct RingLinks {
  UniqueFd to_next;
  UniqueFd from_previous;
};

/// Listens on a free port of `group.address`, tells the others through the store, and connects the ring. A caller
/// that does not know the random word which was told through the store is hung up on. No name is ever looked up.
[[nodiscard]] Result<RingLinks> connect_ring(const Group& group, Deadline deadline);

/// Waits until `fd` is ready for one of `events`; false when the deadline passes first.
bool wait_for(int fd, short events, Deadline deadline);

/// What poll(2) takes: whole milliseconds until the deadline, rounded up.
int poll_timeout(Deadline deadline);

}  // namespace ddrun::collectives
