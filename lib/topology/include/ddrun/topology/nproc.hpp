#pragma once

#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"
#include "ddrun/topology/cpus.hpp"
#include "ddrun/topology/gpus.hpp"
#include "ddrun/topology/system_roots.hpp"

namespace ddrun::topology {

/// The number of workers that --nproc-per-node means here: the number given, CPUs that may be used (`cpu`), GPUs that
/// may be seen (`gpu`), or GPUs if there are any and else CPUs (`auto`). Always at least 1.
/// Fails with `invalid_argument` when GPUs were asked for and there is none.
[[nodiscard]] Result<int> resolve_nproc(const NprocSpec& nproc, const CpuSet& allowed, const Gpus& gpus);

/// The same, looking only at what is needed for the answer: at nothing for a number.
[[nodiscard]] Result<int> resolve_nproc(const NprocSpec& nproc, const SystemRoots& roots = {});

/// Where a scheduler gives this job `given` GPUs of a machine that shows `here`, `gpu` and `auto` mean no more than
/// that.
void limit_gpus(NprocSpec& nproc, int given, const Gpus& here);

}  // namespace ddrun::topology
