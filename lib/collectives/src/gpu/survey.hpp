#pragma once

#include <string>
#include <vector>

#include "ddrun/base/result.hpp"
#include "exchange.hpp"

namespace ddrun::collectives {

/// What a rank found of the requirements of nccl: driver, GPUs, library. Exchanged between ranks, so that all decide
/// alike.
struct GpuSurvey {
  bool probed = false;               ///< false: this rank was not asked to probe
  int driver = 0;                    ///< CUDA version of the driver, 13000 is 13.0; 0: none
  std::string driver_info;           ///< the driver's file, or why there is none
  std::vector<std::string> devices;  ///< UUIDs of the GPUs visible to this process, in order
  int nccl = 0;                      ///< NCCL's version, 22809 is 2.28.9; 0: none
  std::string nccl_info;             ///< NCCL's file, or why there is none
  bool may_share = false;            ///< NCCL_MULTI_RANK_GPU_ENABLE is set and this NCCL supports it

  /// Loads the driver, and NCCL if there is a GPU or `thorough`.
  [[nodiscard]] static GpuSurvey of_this_process(bool thorough);

  /// Serialised as one line of text. parse() fails with `protocol` on other input.
  [[nodiscard]] std::string line() const;
  [[nodiscard]] static Result<GpuSurvey> parse(const std::string& line);

  /// "driver for CUDA 13.0 (libcuda.so.1), 8 GPUs; NCCL 2.28.9 (libnccl.so.2)", or what is missing and why.
  [[nodiscard]] std::string describe() const;
};

struct GpuPlan {
  /// By rank: index into its `devices`. Empty if nccl cannot be used.
  std::vector<int> devices{};
  /// By rank: how many ranks use its GPU.
  std::vector<int> ranks_on_device{};
  /// Why nccl cannot be used, or only with another setting.
  std::string problem{};
  /// The first two ranks that share a GPU; -1: none.
  int one = -1;
  int other = -1;

  [[nodiscard]] bool possible() const { return !devices.empty(); }
  [[nodiscard]] bool shared() const { return one >= 0; }
};

/// A rank's GPU index is its index among the ranks of its machine; if a launcher makes one GPU visible per rank, that
/// one. With `may_share` on all ranks, indices wrap around if there are too few GPUs. Equal on all ranks.
[[nodiscard]] GpuPlan plan_gpus(const std::vector<GpuSurvey>& surveys, const std::vector<HostIdentity>& hosts);

}  // namespace ddrun::collectives
