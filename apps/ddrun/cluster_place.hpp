#pragma once

#include <sys/types.h>

#include "ddrun/base/result.hpp"
#include "ddrun/cli/parse.hpp"
#include "ddrun/cluster/complete.hpp"

/// What this machine's environment says about the job.
struct ClusterPlace {
  ddrun::cluster::Detected detected;
  ddrun::cluster::Completion completion;
};

/// Looks at this process's environment and fills in `launch` what the user did not say. `started_pid` is the process
/// that was started as ddrun. Does not block, costs nothing worth mentioning where no scheduler is.
[[nodiscard]] ddrun::Result<ddrun::cluster::Detected> detect_place(const ddrun::cli::Launch& launch, pid_t started_pid);
/// What was detected, filled in. `gpu` and `auto` mean no more GPUs than the scheduler gives.
[[nodiscard]] ddrun::Result<ddrun::cluster::Completion> complete_place(ddrun::cli::Launch& launch,
                                                                       const ddrun::cluster::Detected& detected);
/// Both.
[[nodiscard]] ddrun::Result<ClusterPlace> find_place(ddrun::cli::Launch& launch, pid_t started_pid);
