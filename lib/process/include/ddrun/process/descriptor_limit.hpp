#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace ddrun::process {

/// Raises our soft limit of open descriptors to the hard one and gives back what it was, for the workers: a program
/// that uses select() must not find a limit of a million. Never fails; where it cannot be raised it stays.
rlimit raise_descriptor_limit();

/// How many more descriptors may be opened now.
[[nodiscard]] std::size_t free_descriptors();

}  // namespace ddrun::process
