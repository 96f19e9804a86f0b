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

/// Where the ranks of an MPI program find their world.
struct PmiFacts {
  std::string port;                               ///< PMI_PORT
  std::function<std::string(int local_rank)> id;  ///< PMI_ID
};
struct PmixFacts {
  std::vector<std::vector<std::string>> variables;  ///< NAME=VALUE by local rank, as many for each
  std::string directory;                            ///< for segments of shared memory
  bool oversubscribed = false;                      ///< more workers than CPUs
};

/// The agent's values for one attempt. Empty: not available.
struct WorkerFacts {
  std::string version;      ///< DDRUN_VERSION
  std::string attempt_dir;  ///< DDRUN_ATTEMPT_DIR: directory of this attempt's logs
  /// TORCHELASTIC_ERROR_FILE by local rank; its directory must exist, PyTorch does not create it. Unset: the variable
  /// is empty, as with torchrun without log files.
  std::function<std::string(int local_rank)> error_file;
  std::string timer_file;                                        ///< TORCHELASTIC_TIMER_FILE; empty: inherited
  std::vector<std::pair<std::string, std::string>> network;      ///< NAME and VALUE, for variables that are not set
  std::vector<std::pair<std::string, std::string>> addresses{};  ///< as address_variables()
  std::optional<PmiFacts> pmi;                                   ///< with --mpi
  std::optional<PmixFacts> pmix;                                 ///< with --mpi
  std::string job_tag;  ///< DDRUN_JOB_TAG: the same for every process of this job
  int seed_offset = 0;  ///< from a worker's rank to its number for DDRUN_SEED
};

/// Fails with `invalid_argument` for a variable that --env and --env-file must not set for a program with a world, or
/// without one.
[[nodiscard]] Result<void> check_variable(const std::string& name, bool has_world);

/// Whether the workers use the agent's store (TORCHELASTIC_USE_AGENT_STORE=True). False only with
/// TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and a rendezvous other than static: then rank 0 opens its own store at
/// MASTER_ADDR:MASTER_PORT, and the agent must not listen there.
[[nodiscard]] bool uses_agent_store(const LaunchSpec& spec, const ProgramSpec& program, const Environment& parent);

/// The environments of all workers of a program in one attempt. Common entries are prepared once and shared: thousands
/// of workers use the strings of ddrun's own environment.
///
/// Order: inherited entries in their order; --env; ddrun's variables. block(int) and list() are not thread-safe.
class WorkerEnvironment {
 public:
  /// `parent` must outlive the result. Fails with `invalid_argument` if --env has an invalid name or a variable that
  /// ddrun sets itself, or if the device list is too short for --virtual-local-rank.
  [[nodiscard]] static Result<WorkerEnvironment> prepare(const LaunchSpec& spec, const ProgramSpec& program,
                                                         const RankAssignment& ranks, const Environment& parent,
                                                         const WorkerFacts& facts);

  /// One worker's own entries and the array for execve(). Reusable; owned by the caller.
  struct Block {
    std::vector<std::string> own;
    std::vector<char*> pointers;
  };

  /// The null-terminated array for execve() of one worker, 0 <= local_rank < local_world_size, built in `block`. Valid
  /// until `block` is reused or this object is destroyed. A block belongs to one WorkerEnvironment.
  [[nodiscard]] char* const* block(int local_rank, Block& block) const;

  /// The same in an internal block. Valid until the next call on this object or its destruction.
  [[nodiscard]] char* const* block(int local_rank);

  /// The same as text: for --dry-run and tests.
  [[nodiscard]] std::vector<std::string> list(int local_rank);

 private:
  WorkerEnvironment() = default;

  RankAssignment ranks_;
  bool has_world_ = true;
  bool virtual_local_rank_ = false;
  int first_port_ = 0;                  ///< 0: none
  std::vector<std::string> with_port_;  ///< entries with ${port}
  bool hip_ = false;                    ///< the list is from HIP_VISIBLE_DEVICES; workers get both variables
  std::vector<std::string> devices_;    ///< by local rank, for virtual_local_rank_; none: the local rank
  std::optional<std::uint64_t> seed_;
  int seed_offset_ = 0;
  std::function<std::string(int)> error_file_;
  std::function<std::string(int)> pmi_id_;                ///< null without PMI-1
  std::vector<std::vector<std::string>> pmix_variables_;  ///< by local rank; none without PMIx
  /// The common entries that are not inherited. Heap arrays, so that pointers stay valid when this object is moved.
  std::vector<std::unique_ptr<char[]>> common_;
  std::vector<char*> pointers_;  ///< inherited, common, space for a worker's own entries, null
  std::size_t first_own_ = 0;    ///< index into pointers_
  std::size_t own_count_ = 0;    ///< number of entries that differ between workers
  Block block_;
};

/// One worker's environment, "NAME=VALUE" each: prepare() and list() in one.
[[nodiscard]] Result<std::vector<std::string>> worker_environment(const LaunchSpec& spec, const ProgramSpec& program,
                                                                  const RankAssignment& ranks, int local_rank,
                                                                  const Environment& parent, const WorkerFacts& facts);

/// DDRUN_SEED of `rank` for `--seed n`: output number rank + 1 of the generator SplitMix64 started with n
/// (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014). Modulo 2^64:
///
///     z = n + (rank + 1) * 0x9E3779B97F4A7C15
///     z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
///     z = (z ^ (z >> 27)) * 0x94D049BB133111EB
///     seed = z ^ (z >> 31)
///
/// For one n all ranks have different seeds (every step is invertible), neighbouring ranks and neighbouring n share no
/// pattern, and the value depends only on n and rank, not on the number of workers, nodes or restarts.
[[nodiscard]] std::uint64_t worker_seed(std::uint64_t n, int rank);

/// A worker's argv: `python -u [-m] name args…`, or `name args…` for an executable, as the user wrote it; for
/// --run-path `python -u -c CODE name args…`, where CODE runs the script and waits for the other workers at its end.
/// `python` is unused for an executable. `${rank}`, `${local_rank}` and, with a port, `${port}` are replaced in the
/// arguments only; all other text is unchanged (`$$`, `${x}`, `$rank`).
[[nodiscard]] std::vector<std::string> worker_argv(const ProgramSpec& program, int rank, int local_rank,
                                                   const std::string& python, int port = 0);

/// False: all workers can share one argv.
[[nodiscard]] bool argv_depends_on_rank(const ProgramSpec& program);

}  // namespace ddrun::worker_env
