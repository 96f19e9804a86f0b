#pragma once

#include <string>

namespace ddrun::allreduce {

/// The process that started all ranks of this machine, as words that no other process has until the machine starts
/// again: the nearest ancestor of this process without `variable`=`value` in its environment. Shells between it and the
/// ranks do not matter. Empty if /proc does not tell.
[[nodiscard]] std::string launcher_process(const std::string& variable, const std::string& value);

}  // namespace ddrun::allreduce
