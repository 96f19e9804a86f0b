#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/duration.hpp"
#include "ddrun/collectives/communicator.hpp"
#include "results.hpp"

namespace ddrun::allreduce {

/// What the command line asks for. Sizes are bytes of one rank's data.
struct Options {
  std::uint64_t min_bytes = 8;
  /// Unset: 128 MiB, or less where memory is short.
  std::optional<std::uint64_t> max_bytes;
  std::uint64_t step_factor = 2;
  std::uint64_t step_bytes = 0;  ///< not 0: the next size is this much more, instead of step_factor times
  int iterations = 0;            ///< 0: up to 20, as many as fit into a fraction of a second; more for tiny sizes
  int warmup = 2;
  bool check = true;
  collectives::Backend backend = collectives::Backend::automatic;
  std::vector<collectives::Collective> collectives{collectives::Collective::all_reduce};
  std::vector<collectives::DataType> types{collectives::DataType::float32};
  std::vector<collectives::ReduceOp> ops{collectives::ReduceOp::sum};
  int root = 0;
  Milliseconds timeout{60'000};  ///< for the start, and for each operation
  std::string json_file;

  // For tests of launchers.
  int corrupt_rank = -1;
  int kill_rank = -1;
  std::uint64_t kill_at = 0;  ///< the first size, in bytes, before which kill_rank dies
};

/// What is to be measured, in this order.
[[nodiscard]] std::vector<Case> cases(const Options& options);

/// The sizes to run, ascending: bytes, rounded down to whole elements for each of `ranks` ranks where there is a block
/// for each, and at least one of these. A barrier has the size 0 alone.
[[nodiscard]] std::vector<std::uint64_t> sizes(const Options& options, std::uint64_t max_bytes, const Case& what,
                                               int ranks);

/// What has to be equal on all ranks, as words "name=value".
[[nodiscard]] std::string must_agree(const Options& options);

struct Parsed {
  Options options;
  /// Set: the program ends now with this status; what there was to say has been said.
  std::optional<int> exit_code;
};

[[nodiscard]] Parsed parse_options(int argc, char** argv);

}  // namespace ddrun::allreduce
