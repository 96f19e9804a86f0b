#pragma once

#include <functional>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/guard.hpp"

namespace ddrun::process {

/// The record that the guard writes to the sweeper for each signal that ends the job.
struct EndingMessage {
  unsigned char unhandled = 0;  ///< the signal, if the agent does not handle signals; else 0
  bool at_once = false;         ///< as SignalMessage::at_once
};

/// Forks the agent and runs as sweeper until it may exit. `guard_pipe`: EndingMessage records, end-of-file when the
/// guard is dead. `context` goes to the agent. Returns the sweeper's exit code.
int run_sweeper(int argc, char** argv, UniqueFd guard_pipe, AgentContext context,
                const std::function<int(AgentContext&)>& agent_main);

}  // namespace ddrun::process
