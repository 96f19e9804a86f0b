#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::worker_env {

/// What only the agent knows when it starts the workers of one attempt. Empty: there is none.
struct WorkerFacts {
  std::string version;      ///< DDRUN_VERSION
  std::string attempt_dir;  ///< DDRUN_ATTEMPT_DIR: directory of this attempt's logs
  /// TORCHELASTIC_ERROR_FILE by local rank (the directory must be there: PyTorch makes none). Unset: the variable is
  /// empty, as with torchrun and no log files.
  std::function<std::string(int local_rank)> error_file;
  std::string timer_file;  ///< TORCHELASTIC_TIMER_FILE; empty: what was inherited stays
  std::vector<std::pair<std::string, std::string>> network;  ///< NAME and VALUE, for names that are not set
  std::string job_tag;                                       ///< DDRUN_JOB_TAG: the same for every process of this job
};

/// Whether the workers' store is the agent's (TORCHELASTIC_USE_AGENT_STORE=True). False only where the user asked
/// for it with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 outside of the static rendezvous; then the worker with rank 0
/// opens a store of its own at MASTER_ADDR:MASTER_PORT, and the agent must not listen there.
[[nodiscard]] bool uses_agent_store(const LaunchSpec& spec, const Environment& parent);

/// The environments of all workers of one attempt. What is common to them is prepared once and not copied: thousands
/// of workers share the strings of ddrun's own environment.
///
/// Order: what was inherited, in its order; --env; ours. Not for use from several threads at once.
class WorkerEnvironment {
 public:
  /// `parent` must outlive the result. Fails with `invalid_argument` when --env names a variable that ddrun sets
  /// itself or is not a variable's name, and when the list of devices is too short for --virtual-local-rank.
  [[nodiscard]] static Result<WorkerEnvironment> prepare(const LaunchSpec& spec, const RankAssignment& ranks,
                                                         const Environment& parent, const WorkerFacts& facts);

  /// What is one worker's alone, and the array that execve() gets. Reusable; belongs to the caller.
  struct Block {
    std::vector<std::string> own;
    std::vector<char*> pointers;
  };

  /// The null-terminated block for execve() of one worker, 0 <= local_rank < local_world_size, made in `block`. It is
  /// valid as long as this object and until `block` is used again. A block serves one WorkerEnvironment only.
  [[nodiscard]] char* const* block(int local_rank, Block& block) const;

  /// The same in a block of this object's own, 0 <= local_rank < local_world_size.
  /// Valid until the next call on this object or its end.
  [[nodiscard]] char* const* block(int local_rank);

  /// The same as text: for --dry-run and tests.
  [[nodiscard]] std::vector<std::string> list(int local_rank);

 private:
  WorkerEnvironment() = default;

  RankAssignment ranks_;
  bool virtual_local_rank_ = false;
  bool hip_ = false;                          ///< the list is that of HIP_VISIBLE_DEVICES, and workers get both
  std::vector<std::string> visible_devices_;  ///< the parent's list, for virtual_local_rank_
  std::optional<std::uint64_t> seed_;
  std::function<std::string(int)> error_file_;
  /// The common strings that are not inherited. On the heap as arrays, so that moving this object moves no string.
  std::vector<std::unique_ptr<char[]>> common_;
  std::vector<char*> pointers_;  ///< inherited, common, place for what is a worker's own, null
  std::size_t first_own_ = 0;    ///< index into pointers_
  std::size_t own_count_ = 0;    ///< the strings that differ between workers
  Block block_;
};

/// One worker's environment, "NAME=VALUE" each: prepare() and list() in one.
[[nodiscard]] Result<std::vector<std::string>> worker_environment(const LaunchSpec& spec, const RankAssignment& ranks,
                                                                  int local_rank, const Environment& parent,
                                                                  const WorkerFacts& facts);

/// DDRUN_SEED of `rank` for `--seed n`: output number rank + 1 of the generator SplitMix64 started with n
/// (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014). Modulo 2^64:
///
///     z = n + (rank + 1) * 0x9E3779B97F4A7C15
///     z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
///     z = (z ^ (z >> 27)) * 0x94D049BB133111EB
///     seed = z ^ (z >> 31)
///
/// For one n no two ranks have the same seed (every step can be undone), neighbouring ranks and neighbouring n share
/// no pattern, and the value depends on nothing but n and rank: not on the number of workers, nodes or restarts.
[[nodiscard]] std::uint64_t worker_seed(std::uint64_t n, int rank);

/// What a worker gets as argv: `python -u [-m] name args…`, or `name args…` for an executable, as the user wrote it;
/// for
/// --run-path `python -u -c CODE name args…`, where CODE runs the script and waits for the other workers at its end.
/// `python` is unused for an executable. In the arguments, and only there, `${rank}` and `${local_rank}` are replaced;
/// everything else stays byte for byte (`$$`, `${x}`, `$rank`).
[[nodiscard]] std::vector<std::string> worker_argv(const ProgramSpec& program, int rank, int local_rank,
                                                   const std::string& python);

/// False: all workers have the same argv, so one is enough for all of them.
[[nodiscard]] bool argv_depends_on_rank(const ProgramSpec& program);

}  // namespace ddrun::worker_env
