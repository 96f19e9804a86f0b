#pragma once

#include <string_view>
#include <vector>

#include "ddrun/cluster/detect.hpp"

namespace ddrun::cluster {

// The first of these that is set counts. What Slurm says of a step is in the first ones.
inline const std::vector<std::string_view> slurm_job_names{"SLURM_JOB_ID", "SLURM_JOBID"};
inline const std::vector<std::string_view> slurm_step_names{"SLURM_STEP_ID", "SLURM_STEPID"};
inline const std::vector<std::string_view> slurm_step_tasks_names{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
inline const std::vector<std::string_view> slurm_step_hosts_names{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                                                                  "SLURM_NODELIST"};

/// The step that srun made this process a task of; nothing in a batch script or in salloc's shell, which are steps
/// of Slurm's own.
[[nodiscard]] Maybe<std::string> slurm_step(const Environment& variables);

/// Whether it is a job of several parts, each with variables of its own.
[[nodiscard]] bool is_heterogeneous_slurm(const Environment& variables);

/// "12.0", "12.0.r1": unlike that of any other job, step or restart of the cluster.
[[nodiscard]] std::string slurm_id(const Environment& variables, std::string_view job, std::string_view step);

}  // namespace ddrun::cluster
