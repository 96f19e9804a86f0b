#pragma once

#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

/// What one rank finds that nccl needs: a driver, GPUs, the library. Ranks tell it each other, so that all decide
/// alike.
struct GpuSurvey {
  bool probed = false;               ///< false: this rank was not asked to look
  int driver = 0;                    ///< CUDA version of the driver, 13000 is 13.0; 0: none
  std::string driver_info;           ///< why there is no driver, or where it is
  std::vector<std::string> devices;  ///< identities of the GPUs that this process may use, in their order
  int nccl = 0;                      ///< NCCL's version, 22809 is 2.28.9; 0: none
  std::string nccl_info;             ///< why there is no NCCL, or where it is
  bool may_share = false;            ///< NCCL_MULTI_RANK_GPU_ENABLE is set, and this NCCL knows it

  /// Of this process. Loads the driver, and NCCL where there is a GPU; `thorough`: NCCL in any case.
  [[nodiscard]] static GpuSurvey of_this_process(bool thorough);

  /// One line of text and back; `protocol` if it is not such a line.
  [[nodiscard]] std::string line() const;
  [[nodiscard]] static Result<GpuSurvey> parse(const std::string& line);

  /// "driver for CUDA 13.0 (libcuda.so.1), 8 GPUs, NCCL 2.28.9 (libnccl.so.2)", or what there is not and why.
  [[nodiscard]] std::string describe() const;
};

/// Which GPU each rank takes.
struct GpuPlan {
  /// By rank: position in its `devices`. Empty if nccl cannot be used.
  std::vector<int> devices{};
  /// Why it cannot be used, or cannot without help.
  std::string problem{};
  /// The first two ranks that have the same GPU; -1: none.
  int one = -1;
  int other = -1;

  [[nodiscard]] bool possible() const { return !devices.empty(); }
  [[nodiscard]] bool shared() const { return one >= 0; }
};

/// A rank's GPU is the one whose position is the rank's place among its machine's ranks; where a launcher lets each
/// rank see one only, that one. With `may_share` on all ranks they go round where there are too few. The same on every
/// rank.
[[nodiscard]] GpuPlan plan_gpus(const std::vector<GpuSurvey>& surveys, const std::vector<HostIdentity>& hosts);

}  // namespace ddrun::collectives
