#pragma once

#include <array>
#include <string_view>

namespace ddrun::cluster {

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

}  // namespace ddrun::cluster
