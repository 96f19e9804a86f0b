#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/cluster/detect.hpp"

namespace ddrun::cluster {

/// The inputs of a scheme's function.
struct DetectContext {
  const Environment& variables;
  const ReadFile& read_file;
  const Machine& machine;
  bool under_mpi = false;  ///< mpirun started this process, possibly inside a batch job
};

/// nullopt if the scheme is absent; an error for contradictory or invalid variables. `evidence` is filled in when
/// results are merged.
using DetectResult = Result<std::optional<Detected>>;

DetectResult find_slurm(const DetectContext& context);
DetectResult find_open_mpi(const DetectContext& context);
DetectResult find_mpich(const DetectContext& context);
DetectResult find_flux(const DetectContext& context);
DetectResult find_pbs(const DetectContext& context);
DetectResult find_lsf(const DetectContext& context);
DetectResult find_sge(const DetectContext& context);
DetectResult find_torchrun(const DetectContext& context);
DetectResult find_kubernetes(const DetectContext& context);
DetectResult find_skypilot(const DetectContext& context);
DetectResult find_dstack(const DetectContext& context);
DetectResult find_sagemaker(const DetectContext& context);
DetectResult find_azureml(const DetectContext& context);
DetectResult find_volcano(const DetectContext& context);
DetectResult find_horovod(const DetectContext& context);
DetectResult find_tpu(const DetectContext& context);
DetectResult find_torchx(const DetectContext& context);
DetectResult find_plain(const DetectContext& context);

// Helpers for all schemes.

/// The variable as a number in [low, high]; any other content is an error that names the variable.
[[nodiscard]] Result<Maybe<int>> number_of(const Environment& variables, std::string_view name, int low, int high);
/// The first of `names` that is set, as number_of().
[[nodiscard]] Result<Maybe<int>> first_number_of(const Environment& variables,
                                                 const std::vector<std::string_view>& names, int low, int high);
[[nodiscard]] Maybe<std::string> text_of(const Environment& variables, std::string_view name);
[[nodiscard]] Maybe<std::string> first_text_of(const Environment& variables,
                                               const std::vector<std::string_view>& names);

/// "A=2 and B=n[1-3], which names 3, contradict each other"
[[nodiscard]] tl::unexpected<Error> contradiction(
    std::string_view one, std::string_view other,
    std::string_view way_out = "unset the wrong one, or give --env-detect=none");

/// Rank 0 is the coordinator's host.
inline void set_node_rank(Detected& detected, Fact<int> rank) {
  detected.is_host = {{rank.value == 0, rank.variable}};
  detected.node_rank = std::move(rank);
}

/// The index of this machine in the list, by name, short name or interface address.
[[nodiscard]] std::optional<int> position_of(const Machine& machine, const std::vector<std::string>& hosts);
/// Without duplicates, in order of first appearance.
[[nodiscard]] std::vector<std::string> unique(const std::vector<std::string>& hosts);
/// Replaces other characters than letters, digits and "._-" by '-'; at most 100 characters.
[[nodiscard]] std::string as_job_id(std::string_view text);
[[nodiscard]] std::string endpoint_text(const Endpoint& endpoint);
/// A list for messages, "n1:20001, n1:20002"; long lists are abbreviated.
[[nodiscard]] std::string short_list(const std::vector<std::string>& words);

inline constexpr int node_limit = 1'000'000;

// ---- variables used by more than one scheme

/// Names of an MPI implementation's variables.
struct MpiVariables {
  std::string_view scheme, rank, size, local_rank, local_size;
  std::string_view one_per_node;  ///< mpirun's option for one process per machine
  std::string_view pass;          ///< its options that set the store's address for every process
};

inline constexpr MpiVariables open_mpi{"Open MPI",
                                       "OMPI_COMM_WORLD_RANK",
                                       "OMPI_COMM_WORLD_SIZE",
                                       "OMPI_COMM_WORLD_LOCAL_RANK",
                                       "OMPI_COMM_WORLD_LOCAL_SIZE",
                                       "--map-by ppr:1:node",
                                       "-x MASTER_ADDR=ADDRESS -x MASTER_PORT=PORT"};
/// Also Intel MPI. Slurm and Flux set PMI_RANK as well, but not the local size.
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

// The first one that is set counts; a step's variables come first.
inline const std::vector<std::string_view> slurm_job_names{"SLURM_JOB_ID", "SLURM_JOBID"};
inline const std::vector<std::string_view> slurm_step_names{"SLURM_STEP_ID", "SLURM_STEPID"};
inline const std::vector<std::string_view> slurm_step_tasks_names{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"};
inline const std::vector<std::string_view> slurm_step_hosts_names{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST",
                                                                  "SLURM_NODELIST"};

/// The srun step of this process; nullopt in a batch script or salloc's shell, which are internal steps of Slurm.
[[nodiscard]] Maybe<std::string> slurm_step(const Environment& variables);

/// Whether this is a heterogeneous job, whose components have separate variables.
[[nodiscard]] bool is_heterogeneous_slurm(const Environment& variables);

/// "12.0", "12.0.r1": unique per job, step and restart in the cluster.
[[nodiscard]] std::string slurm_id(const Environment& variables, std::string_view job, std::string_view step);

}  // namespace ddrun::cluster
