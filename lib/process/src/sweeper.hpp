#pragma once

#include <time.h>

#include <functional>

#include "ddrun/base/unique_fd.hpp"
#include "ddrun/process/guard.hpp"

namespace ddrun::process {

/// What the guard writes to the sweeper for each signal that ends the job.
struct EndingMessage {
  unsigned char unhandled = 0;  ///< the signal, if the agent does not listen; else 0
  bool at_once = false;         ///< it is meant as a repetition
};

/// The sweeper's whole life. `guard_pipe`: EndingMessage records, end-of-file when the guard is dead.
/// `messages` goes on to the agent. Returns the exit code that the guard should see.
int run_sweeper(int argc, char** argv, UniqueFd guard_pipe, AgentContext context,
                const std::function<int(AgentContext&)>& agent_main);

/// A job that has run for this long is not one whose end comes any moment.
constexpr timespec settle_time{0, 200'000'000};

/// Gives back the pages of the program that this process has mapped so far; those it still needs come back from the
/// page cache as it touches them. Guard and sweeper call it once the job has run for `settle_time`: starting up runs
/// through much more of the program than they ever need again, and a short job is over before giving back pays.
void drop_startup_pages();

}  // namespace ddrun::process
