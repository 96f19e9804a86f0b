#pragma once

#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/collectives/communicator.hpp"

namespace ddrun::bench {

// Exit statuses (docs/allreduce.md).
inline constexpr int exit_ok = 0;
/// A wrong element, a lost rank, too little memory, or failed connections.
inline constexpr int exit_failed = 1;
/// Invalid options or environment, or ranks with different options.
inline constexpr int exit_usage = 2;
/// Results correct, but a threshold was missed.
inline constexpr int exit_too_slow = 3;
inline constexpr int exit_timeout = 4;
/// The requested back end lacks a device or a library; ctest counts it as skipped.
inline constexpr int exit_cannot_run_here = 77;

/// Writes one line to stderr with a single write(), so that lines of several ranks do not mix.
inline void print_error(std::string_view message) {
  write_shared(STDERR_FILENO, concat("ddrun-allreduce: error: ", message, '\n'));
}

/// A required result at one size of each case.
struct Threshold {
  double value = 0;                    ///< minimum bus bandwidth in GB/s, or maximum latency in microseconds
  std::optional<std::uint64_t> bytes;  ///< none: the largest size of the case (bandwidth) or its smallest (latency)
};

/// Pass/fail limits of --min-busbw and --max-latency. They apply to the better of the two placements: the mean time of
/// the slowest rank, as in the table. With --pairs they apply to every pair: its bandwidth each way, and the median
/// time of 8 bytes. A barrier is checked only against a latency without a size.
struct Thresholds {
  std::vector<Threshold> min_busbw;
  std::vector<Threshold> max_latency;

  [[nodiscard]] bool any() const { return !min_busbw.empty() || !max_latency.empty(); }
};

/// Output files and thresholds. Empty paths: no file.
struct ReportOptions {
  std::string json_file;
  std::string plot_file;
  Thresholds thresholds;
};

/// The command line. Sizes are in bytes, of the larger of a rank's (the root's) input and output.
struct Options {
  std::uint64_t min_bytes = 8;
  /// Unset: 128 MiB, or less if memory is short.
  std::optional<std::uint64_t> max_bytes;
  std::uint64_t step_factor = 2;
  std::uint64_t step_bytes = 0;  ///< not 0: added to each size, instead of multiplying by step_factor
  int iterations = 0;            ///< 0: up to 20 within a fraction of a second; more for tiny sizes
  int warmup = 2;
  bool pairs = false;  ///< measure every pair of nodes instead of collectives
  int checks = 1;      ///< number of checked calls, at each size and placement
  std::vector<collectives::Collective> collectives{collectives::Collective::all_reduce};
  std::vector<collectives::DataType> types{collectives::DataType::float32};
  std::vector<collectives::ReduceOp> ops{collectives::ReduceOp::sum};
  int root = 0;  ///< every_root: each rank in turn
  collectives::Backend backend = collectives::Backend::automatic;
  bool private_buffers = false;     ///< use private memory instead of the back end's buffers
  int streams = 0;                  ///< tcp: connections per pair of ranks; 0: chosen
  bool blocking = false;            ///< nccl: wait for each call before the next is enqueued
  int graph_launches = 0;           ///< nccl: launches of the captured graph; 0: no graph
  Milliseconds timeout{60'000};     ///< for connecting the ranks
  Milliseconds op_timeout{60'000};  ///< for each call; defaults to `timeout`
  ReportOptions report;

  // For tests of launchers; -1: none.
  int corrupt_rank = -1;
  int kill_rank = -1;
  std::uint64_t kill_at = 0;  ///< kill_rank kills itself before the first size of at least this many bytes

  static constexpr int every_root = -1;
};

struct Parsed {
  Options options;
  /// Set: exit with this status; help or errors have been printed.
  std::optional<int> exit_code;
};

[[nodiscard]] Parsed parse_options(int argc, char** argv);

/// The value of --buffers: "shared" or "private".
[[nodiscard]] std::string buffers_of(const Options& options);

/// `invalid_argument` if an option does not apply to this back end.
[[nodiscard]] Result<void> check_backend_options(const Options& options, std::string_view backend);

}  // namespace ddrun::bench
