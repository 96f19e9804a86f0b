#pragma once

#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::remote {

struct SrunOptions {
  std::vector<std::string> arguments;  ///< ddrun's as typed; passed to the agents
  std::string started_as;              ///< path of ddrun as typed, for the agents; empty: unknown
  int nodes = 0;                       ///< of the Slurm job; one agent is started on each
  bool in_step = false;                ///< an enclosing step holds the CPUs of the nodes
};

/// The step that a process in run_srun() has started, in memory shared with its guard.
struct SrunStep;

/// Must be called before guard and agent are forked. The memory is never freed. Null outside of a Slurm job, or without
/// memory: stop_orphaned_step() does nothing then.
[[nodiscard]] SrunStep* share_srun_step();

/// Runs ddrun on each node of a Slurm job from the job's script, by one srun. Signals are forwarded; srun itself
/// forwards stdin and the output. `spec` says which signals end the job and how. Removes variables from this process's
/// environment that srun would read as options.
///
/// Call in the agent process of run_guarded(). Blocks until srun has ended; returns its exit code, 128 plus the signal
/// that killed it, or an error if it could not be started (`not_found`, `not_executable`, `unavailable`).
[[nodiscard]] Result<int> run_srun(const LaunchSpec& spec, const SrunOptions& options, SrunStep* step,
                                   process::AgentContext& context);

/// For the guard, if the process in run_srun() was killed: stops agents that still run. Blocks for at most 20 s.
void stop_orphaned_step(const SrunStep* step);

}  // namespace ddrun::remote
