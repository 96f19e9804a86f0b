#pragma once

#include <optional>
#include <string>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"

namespace ddrun::cluster {

// For programs that are ranks themselves. To ddrun, which wants one of itself on each machine, the same variables say
// something else; see detect().

/// What a launcher that starts ranks (mpirun, mpiexec, srun) tells one of them.
struct StartedRank {
  std::string launcher;  ///< "Open MPI", for people
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;     ///< ranks on this machine
  std::string command{};  ///< a command line of the launcher that tells all ranks MASTER_ADDR and MASTER_PORT
};

/// Open MPI's variables, those of MPICH, Intel MPI and MVAPICH2, then those of a Slurm step. Nothing if none of them
/// are there; `invalid_argument` for values that cannot be and for a heterogeneous Slurm job.
[[nodiscard]] Result<std::optional<StartedRank>> find_started_rank(const Environment& variables);

}  // namespace ddrun::cluster
