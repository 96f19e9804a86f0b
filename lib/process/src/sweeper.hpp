#pragma once

#include <time.h>

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

/// Guard and sweeper call drop_startup_pages() once the job has run for this long: for a short job it does not pay.
constexpr timespec settle_time{0, 200'000'000};

/// Whether a file of this type (statfs's f_type) that is replaced while it runs can be read on. On network file
/// systems, through FUSE and on unknown ones, code that has to be read again may be gone: SIGBUS.
[[nodiscard]] bool keeps_replaced_programs(long file_system);

/// Gives back the pages of the program's code that this process has mapped, most of which only the start needs. Pages
/// that are used again come from the page cache. Does nothing where keeps_replaced_programs() is false.
void drop_startup_pages();

}  // namespace ddrun::process
