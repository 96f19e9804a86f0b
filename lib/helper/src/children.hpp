#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"

// The registry of running helpers of all kinds, for reap().

namespace ddrun::helper {

/// Starts and registers a helper; returns its pid. Signals are reset as by a shell. `streams` become its stdin, stdout
/// and stderr and must not be 0, 1 or 2. `variable`: NAME=VALUE, added to this process's environment. Errors as of
/// start().
[[nodiscard]] Result<pid_t> spawn(const std::vector<std::string>& argv, const std::array<int, 3>& streams,
                                  bool own_group, const std::string& variable = "");

/// Removes an ended helper from the registry; returns its wait status if reap() has reaped it.
std::optional<int> unregister(pid_t pid);

/// Its pidfd; -1 if pidfds are not available.
[[nodiscard]] int open_pidfd(pid_t pid);

}  // namespace ddrun::helper
