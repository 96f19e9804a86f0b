#pragma once

#include <functional>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/guard.hpp"

namespace ddrun::process {

/// What the guard writes to the sweeper for each signal that ends the job.
struct EndingMessage {
  unsigned char unheard = 0;  ///< the signal, if the agent does not listen; else 0
  bool at_once = false;       ///< it is meant as a repetition
};

/// The sweeper's whole life. `guard_pipe`: EndingMessage records, end-of-file when the guard is dead.
/// `messages` goes on to the agent. Returns the exit code that the guard should see.
int run_sweeper(int argc, char** argv, UniqueFd guard_pipe, AgentContext context,
                const std::function<int(AgentContext&)>& agent_main);

}  // namespace ddrun::process
