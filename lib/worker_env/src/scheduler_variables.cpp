#include "scheduler_variables.hpp"

#include <algorithm>
#include <array>

namespace ddrun::worker_env {

namespace {

// docs/environment.md has the same lists.
constexpr std::array<std::string_view, 10> prefixes{"PMI_",           "PMIX_", "OMPI_COMM_WORLD_", "OMPI_MCA_ess_",
                                                    "OMPI_MCA_orte_", "HYDI_", "MV2_COMM_WORLD_",  "JSM_NAMESPACE_",
                                                    "PALS_",          "PRTE_"};
constexpr std::array<std::string_view, 13> names{
    "SLURM_PROCID",    "SLURM_LOCALID",   "SLURM_NTASKS",         "SLURM_NPROCS",
    "SLURM_GTIDS",     "SLURM_TASK_PID",  "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
    "MPI_LOCALNRANKS", "MPI_LOCALRANKID", "FLUX_TASK_RANK",       "FLUX_TASK_LOCAL_ID",
    "PBS_TASKNUM"};
/// What these begin with, as the whole environment is walked at every start.
constexpr std::string_view initials = "FHJMOPS";

}  // namespace

bool is_scheduler_rank(std::string_view name) {
  if (name.empty() || initials.find(name.front()) == std::string_view::npos) return false;
  return std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return name.starts_with(prefix); }) ||
         std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace ddrun::worker_env
