#pragma once

#include <functional>
#include <thread>

#include "ddrun/base/result.hpp"

namespace ddrun {

/// A thread that no signal of the process ever lands on, not even in its first moment, called `name` (15 letters at
/// most) in what shows threads. Fails with `unavailable` where the system has no more threads to give.
[[nodiscard]] Result<std::thread> start_quiet_thread(const char* name, std::function<void()> run);

}  // namespace ddrun
