#pragma once

#include "ddrun/base/result.hpp"
#include "ddrun/process/guard.hpp"

namespace ddrun::process {

/// --end-with-parent: sends `signal` to the guard when the process that started ddrun has ended, at once if it has
/// ended already. Called by the agent, once. Starts a thread that waits until then; without pidfds (before Linux 5.3)
/// it looks ten times a second. Unlike PR_SET_PDEATHSIG this does not depend on the thread by which ddrun was started.
/// Fails with `invalid_argument` if the parent is outside of this PID namespace, with `unavailable` without a thread.
[[nodiscard]] Result<void> end_with_parent(const SharedState& shared, int signal);

}  // namespace ddrun::process
