#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/collectives/communicator.hpp"

namespace ddrun::bench {

/// What a machine has to reach, at one size of each case.
struct Threshold {
  double value = 0;                    ///< GB/s of bus bandwidth, or microseconds
  std::optional<std::uint64_t> bytes;  ///< none: the largest size of the case (bandwidth), its smallest (latency)
};

/// The better of the two placements has to reach it: the mean time of the slowest rank, as in the table. Where pairs
/// are measured, every pair has to: its bandwidth each way, and the median time of its 8 bytes. A barrier has no
/// bandwidth and no size, so only a latency without a size is asked of it.
struct Thresholds {
  std::vector<Threshold> min_busbw;
  std::vector<Threshold> max_latency;

  [[nodiscard]] bool any() const { return !min_busbw.empty() || !max_latency.empty(); }
};

/// What is written besides the table, and what the results are judged by. Paths are empty where nothing was asked for.
struct ReportOptions {
  std::string json_file;
  std::string plot_file;
  Thresholds thresholds;
};

/// What the command line asks for. Sizes are bytes of the larger of a rank's (the root's) input and output.
struct Options {
  std::uint64_t min_bytes = 8;
  /// Unset: 128 MiB, or less where memory is short.
  std::optional<std::uint64_t> max_bytes;
  std::uint64_t step_factor = 2;
  std::uint64_t step_bytes = 0;  ///< not 0: the next size is this much more, instead of step_factor times
  int iterations = 0;            ///< 0: up to 20, as many as fit into a fraction of a second; more for tiny sizes
  int warmup = 2;
  bool pairs = false;  ///< every pair of nodes instead of collectives
  int checks = 1;      ///< calls whose results are compared, at each size and placement
  std::vector<collectives::Collective> collectives{collectives::Collective::all_reduce};
  std::vector<collectives::DataType> types{collectives::DataType::float32};
  std::vector<collectives::ReduceOp> ops{collectives::ReduceOp::sum};
  int root = 0;  ///< every_root: each rank in turn
  collectives::Backend backend = collectives::Backend::automatic;
  bool private_buffers = false;     ///< calls work on memory that no other process sees
  int streams = 0;                  ///< of tcp: connections between two ranks; 0: chosen
  bool blocking = false;            ///< of nccl: wait for each call before the next is queued
  int graph_launches = 0;           ///< of nccl: 0: calls are queued one by one
  Milliseconds timeout{60'000};     ///< for the start
  Milliseconds op_timeout{60'000};  ///< for each call; as `timeout` where it was not given
  ReportOptions report;

  // For tests of launchers.
  int corrupt_rank = -1;
  int kill_rank = -1;
  std::uint64_t kill_at = 0;  ///< the first size, in bytes, before which kill_rank dies

  static constexpr int every_root = -1;
};

struct Parsed {
  Options options;
  /// Set: the program ends now with this status; what there was to say has been said.
  std::optional<int> exit_code;
};

[[nodiscard]] Parsed parse_options(int argc, char** argv);

/// As the option has it: "shared" or "private".
[[nodiscard]] std::string buffers_of(const Options& options);

/// `invalid_argument` if options were given that mean nothing to the back end of this name.
[[nodiscard]] Result<void> check_backend_options(const Options& options, std::string_view backend);

}  // namespace ddrun::bench
