#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/cluster/detect.hpp"

namespace ddrun::cluster {

/// What a scheme's function may look at.
struct DetectContext {
  const Environment& variables;
  const ReadFile& read_file;
  const Machine& machine;
  bool under_mpi = false;  ///< mpirun started this process, whatever a batch system says
};

/// Nothing (not there), or what was said, or a contradiction within it.
/// Its evidence is made from the facts when all are put together.
using Found = Result<std::optional<Detected>>;

Found find_slurm(const DetectContext& context);
Found find_open_mpi(const DetectContext& context);
Found find_mpich(const DetectContext& context);
Found find_flux(const DetectContext& context);
Found find_pbs(const DetectContext& context);
Found find_lsf(const DetectContext& context);
Found find_sge(const DetectContext& context);
Found find_torchrun(const DetectContext& context);
Found find_kubernetes(const DetectContext& context);
Found find_skypilot(const DetectContext& context);
Found find_dstack(const DetectContext& context);
Found find_sagemaker(const DetectContext& context);
Found find_azureml(const DetectContext& context);
Found find_volcano(const DetectContext& context);
Found find_horovod(const DetectContext& context);
Found find_tpu(const DetectContext& context);
Found find_torchx(const DetectContext& context);
Found find_plain(const DetectContext& context);

// Helpers of all of them.

/// A number of the variable, in [low, high]. A variable with anything else in it is a failure that names it.
[[nodiscard]] Result<Maybe<int>> number_of(const Environment& variables, std::string_view name, int low, int high);
/// The first of `names` that is set.
[[nodiscard]] Result<Maybe<int>> first_number_of(const Environment& variables,
                                                 const std::vector<std::string_view>& names, int low, int high);
[[nodiscard]] Maybe<std::string> text_of(const Environment& variables, std::string_view name);
[[nodiscard]] Maybe<std::string> first_text_of(const Environment& variables,
                                               const std::vector<std::string_view>& names);

/// "A=2 and B=n[1-3], which names 3, contradict each other"
[[nodiscard]] tl::unexpected<Error> contradiction(std::string_view one, std::string_view other,
                                                  std::string_view way_out);

/// Where this machine stands in the list: by name, short name, or address of an interface.
[[nodiscard]] std::optional<int> position_of(const Machine& machine, const std::vector<std::string>& hosts);
/// Without doubles, in order of first appearance.
[[nodiscard]] std::vector<std::string> unique(const std::vector<std::string>& hosts);
/// Letters, digits and "._-" stay; at most 100 of them.
[[nodiscard]] std::string as_job_id(std::string_view text);
[[nodiscard]] std::string endpoint_text(const Endpoint& endpoint);
/// "n1:20001, n1:20002": shows coordinators and hosts; many are cut short.
[[nodiscard]] std::string short_list(const std::vector<std::string>& words);

inline constexpr int node_limit = 1'000'000;

// ---- variables that two of them look at

/// What an MPI's mpirun calls its variables.
struct MpiVariables {
  std::string_view scheme, rank, size, local_rank, local_size;
  std::string_view one_per_node;  ///< mpirun's option for one process on each machine
  std::string_view pass;          ///< its options that tell every process where the store is
};

inline constexpr MpiVariables open_mpi{"Open MPI",
                                       "OMPI_COMM_WORLD_RANK",
                                       "OMPI_COMM_WORLD_SIZE",
                                       "OMPI_COMM_WORLD_LOCAL_RANK",
                                       "OMPI_COMM_WORLD_LOCAL_SIZE",
                                       "--map-by ppr:1:node",
                                       "-x MASTER_ADDR=ADDRESS -x MASTER_PORT=PORT"};
/// Intel MPI too. Slurm and Flux set PMI_RANK as well, but not the local size.
inline constexpr MpiVariables mpich{"MPICH",
                                    "PMI_RANK",
                                    "PMI_SIZE",
                                    "MPI_LOCALRANKID",
                                    "MPI_LOCALNRANKS",
                                    "-ppn 1",
                                    "-genv MASTER_ADDR ADDRESS -genv MASTER_PORT PORT"};
inline constexpr MpiVariables mvapich{"MVAPICH2",
                                      "MV2_COMM_WORLD_RANK",
                                      "MV2_COMM_WORLD_SIZE",
                                      "MV2_COMM_WORLD_LOCAL_RANK",
                                      "MV2_COMM_WORLD_LOCAL_SIZE",
                                      "-ppn 1",
                                      "-genv MASTER_ADDR ADDRESS -genv MASTER_PORT PORT"};
inline constexpr std::array mpis{open_mpi, mpich, mvapich};

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
