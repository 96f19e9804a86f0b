#pragma once

#include <optional>
#include <string>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::cluster {

// For programs that are themselves ranks, such as ddrun-allreduce. ddrun itself uses detect().

/// A rank started by mpirun, mpiexec or srun.
struct StartedRank {
  std::string launcher;  ///< "Open MPI", for messages
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;     ///< ranks on this machine
  std::string command{};  ///< a command of the launcher that sets MASTER_ADDR and MASTER_PORT for all ranks
};

/// Reads the variables of Open MPI, then MPICH, Intel MPI and MVAPICH2, then of a Slurm step. nullopt if none are set;
/// `invalid_argument` for invalid values and for a heterogeneous Slurm job.
[[nodiscard]] Result<std::optional<StartedRank>> find_started_rank(const Environment& variables);

}  // namespace ddrun::cluster
