#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace ddrun::process {

/// Raises our soft limit of open descriptors to the hard one and gives back what it was, for the workers: a program
/// that uses select() must not find a limit of a million. Never fails; where it cannot be raised it stays.
rlimit raise_descriptor_limit();

/// Makes room for descriptors up to this number (or the limit, if that is lower) in one step. To be called before a
/// thread is started or a process that shares our descriptors: from then on, each time the kernel must enlarge the
/// table it waits for a grace period of RCU (`expand_fdtable()` in Linux's fs/file.c), 5 to 10 ms, in whatever call
/// happens to need the room. Never fails; room that cannot be had is made later.
void reserve_descriptors(std::size_t count);

/// How many more descriptors may be opened now. Exact where they are scarce; where hundreds are free there may be a few
/// more.
[[nodiscard]] std::size_t free_descriptors();

}  // namespace ddrun::process
