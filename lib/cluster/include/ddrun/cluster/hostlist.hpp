#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/result.hpp"

namespace ddrun::cluster {

// Slurm's short forms for many nodes. Pure; nothing is looked up.

/// More names than any job has; keeps "n[0-999999999]" from filling the memory.
inline constexpr std::size_t max_hosts = 65'536;

/// "a[001-003,7],b2" -> a001 a002 a003 a7 b2. The order is Slurm's, also of several groups in one name; zeros in front
/// are kept; text may follow a group. Fails for what is not a host list, and for more than `limit` names.
[[nodiscard]] Result<std::vector<std::string>> expand_hostlist(std::string_view text, std::size_t limit = max_hosts);

}  // namespace ddrun::cluster
