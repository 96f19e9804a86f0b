#pragma once

#include <optional>
#include <string>

#include "ddrun/base/environment.hpp"
#include "ddrun/cluster/machine.hpp"

namespace ddrun::cluster {

/// What MUNGE can tell the processes of a Slurm job apart by.
struct SlurmMunge {
  std::string job;     ///< Slurm's number of it
  std::string socket;  ///< of a munged that slurm.conf gives to Slurm alone; empty: the machine's
};

/// Nothing outside of a Slurm job. Reads slurm.conf, and does not block but for that.
[[nodiscard]] std::optional<SlurmMunge> find_slurm_munge(const Environment& variables, const ReadFile& read_file);

}  // namespace ddrun::cluster
