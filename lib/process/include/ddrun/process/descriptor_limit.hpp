#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace ddrun::process {

/// Raises the soft limit of open descriptors to the hard one and returns the previous limit, for the workers: a program
/// that uses select() must not run with a limit of a million. Never fails; where it cannot be raised it stays.
rlimit raise_descriptor_limit();

/// Enlarges the kernel's descriptor table to `count` (or the limit, if that is lower) in one step. To be called before
/// a thread or a process that shares the descriptors is started: afterwards each enlargement waits for an RCU grace
/// period of 5 to 10 ms (`expand_fdtable()` in Linux's fs/file.c), in the call that needs it. Never fails.
void reserve_descriptors(std::size_t count);

/// How many more descriptors may be opened now. Exact where fewer than some hundreds are free, else a lower bound.
[[nodiscard]] std::size_t free_descriptors();

}  // namespace ddrun::process
