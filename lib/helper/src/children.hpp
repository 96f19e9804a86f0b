#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/result.hpp"

// The helpers that run, of all kinds, so that take_end() knows whose end it was asked to take.

namespace ddrun::helper {

/// Its process id. As a shell would start it, whatever this process ignores or blocks; `streams` become its stdin,
/// stdout and stderr and must be no standard streams of ours. `variable`: NAME=VALUE, beside what this process has.
/// Errors as of start().
[[nodiscard]] Result<pid_t> spawn(const std::vector<std::string>& argv, const std::array<int, 3>& streams,
                                  bool own_group, const std::string& variable = "");

/// The helper is of the past; gives back its wait status if take_end() was first.
std::optional<int> unregister(pid_t pid);

/// Its pidfd; -1 where there is none to be had.
[[nodiscard]] int open_pidfd(pid_t pid);

}  // namespace ddrun::helper
