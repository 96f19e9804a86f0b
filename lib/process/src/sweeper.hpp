#pragma once

#include <functional>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/guard.hpp"

namespace ddrun::process {

/// The sweeper's whole life. `guard_pipe`: a byte for each ending signal, end-of-file when the guard is dead.
/// `messages` goes on to the agent. Returns the exit code that the guard should see.
int run_sweeper(int argc, char** argv, UniqueFd guard_pipe, AgentContext context,
                const std::function<int(AgentContext&)>& agent_main);

}  // namespace ddrun::process
