#pragma once

#include <string>
#include <vector>

#include "ddrun/cli/parse.hpp"
#include "ddrun/cluster/complete.hpp"
#include "ddrun/process/guard.hpp"

/// The step that a ddrun in a Slurm script started, as far as those must know it who outlive the ddrun that did: it
/// stands in memory that guard and agent share.
struct SlurmStep {
  char job[32] = {};
  char name[64] = {};  ///< empty: none was started, or it has ended
};

/// Shared memory for it, zeroed; null if there is none.
[[nodiscard]] SlurmStep* share_slurm_step();

/// Starts ddrun with the same `arguments` on each node of the Slurm job that this process is the script of, through
/// srun, and waits for its end. Signals that end a job go to the agents through Slurm, so that they stop in order; srun
/// would kill them. Makes a secret for them if the user has none. The exit code is theirs.
[[nodiscard]] int run_slurm_agents(const ddrun::cli::Launch& launch, const ddrun::cluster::SlurmScript& script,
                                   const std::vector<std::string>& arguments, ddrun::process::AgentContext& context,
                                   SlurmStep* shared);

/// For the guard, when the process that waited for srun was killed: ends a step that is still there.
void end_forgotten_step(const SlurmStep* shared);
