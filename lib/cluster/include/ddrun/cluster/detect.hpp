#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddrun/base/environment.hpp"
#include "ddrun/base/result.hpp"
#include "ddrun/spec/launch_spec.hpp"

namespace ddrun::cluster {

// Detects the job from the variables of a scheduler or another launcher. docs/schedulers.md lists them.

// The inputs of detection. All are arguments, so that a test can simulate any machine.

/// Reads a file; nullopt if it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

struct Machine {
  std::string host_name;               ///< of gethostname()
  std::vector<std::string> addresses;  ///< of its interfaces, as text
  std::int64_t pid = 0;                ///< of the ddrun process that was started; 0: unknown
};

/// The local machine. Does not block: no name is resolved.
[[nodiscard]] Machine this_machine();

/// A ReadFile for real files, at most 16 MiB of each.
[[nodiscard]] std::optional<std::string> read_text_file(const std::string& path);

/// Which processes the scheduler started.
enum class Shape {
  none,          ///< unknown
  agents,        ///< one ddrun per machine, as needed
  ranks,         ///< one ddrun per worker: each would start its own group
  slurm_script,  ///< one ddrun, on the first machine of a Slurm job; srun can start the others
  script,        ///< possibly one ddrun, on the first machine; ddrun or the user must start the others
};

/// A value and the variable it comes from.
template <class T>
struct Fact {
  T value{};
  std::string variable;  ///< "SLURM_STEP_NUM_NODES"
};
template <class T>
using Maybe = std::optional<Fact<T>>;

struct NodeRange {
  int min = 1;
  int max = 1;
  bool operator==(const NodeRange&) const = default;
};

/// One line of what `ddrun env` shows.
struct Evidence {
  std::string what;           ///< "nodes", "node rank", "coordinator"…
  std::string value;          ///< "4"
  std::string variable;       ///< its source
  std::string overridden_by;  ///< empty: used; else what overrides it, or why it is ignored
  bool operator==(const Evidence&) const = default;
};

struct Detected {
  std::string scheme;  ///< "Slurm step", for messages; empty: nothing was found
  Shape shape = Shape::none;
  Maybe<NodeRange> nodes;
  int agents = 0;  ///< agents started together, one per machine; 0: unknown
  Maybe<int> node_rank;
  Maybe<std::vector<std::string>> hosts;  ///< in node rank order
  Maybe<std::vector<Endpoint>> coordinators;
  Maybe<bool> is_host;
  Maybe<std::string> job_id;
  Maybe<int> gpus;               ///< on this machine, for this job
  Maybe<std::int64_t> end_time;  ///< when the scheduler ends the job, seconds since 1970
  bool in_step = false;          ///< shape `slurm_script`, inside an interactive step
  bool standalone = false;       ///< PET_STANDALONE is set and empty, as Kubeflow writes it
  /// The error message for the shapes `ranks` and `script` and for unsupported jobs. Ignored if the user gave the
  /// number of nodes.
  std::string refusal;
  std::vector<Evidence> evidence;
};

/// The values of --env-detect, separated by blanks, "auto" and "none" first.
extern const std::string_view detect_schemes;

/// False if no variable of any scheme is set: detect() would find nothing, and its other arguments are not needed.
[[nodiscard]] bool has_scheduler_variables(const Environment& variables);

/// Evaluates the variables and the files they name. `how` is one of `detect_schemes`. Precedence: torchrun's PET_*,
/// then the innermost scheme (MPI's for mpirun in a Slurm job), plain MASTER_ADDR and NODE_RANK last. Blocks only in
/// `read_file`. Fails if two sources of equal precedence contradict each other, or if `how` names an absent scheme.
[[nodiscard]] Result<Detected> detect(const Environment& variables, const ReadFile& read_file, const Machine& machine,
                                      std::string_view how = "auto");

/// Three ports in 20000–32767, below the ephemeral range, derived from the job's name: the coordinator listens on the
/// first free one, agents try all.
[[nodiscard]] std::vector<Endpoint> candidates(const std::string& host, std::string_view job);

// For programs that are themselves ranks, such as ddrun-allreduce. ddrun itself uses detect().

/// A rank started by mpirun, mpiexec or srun.
struct StartedRank {
  std::string launcher;  ///< "Open MPI", for messages
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;     ///< ranks on this machine
  std::string command{};  ///< a command of the launcher that sets MASTER_ADDR and MASTER_PORT for all ranks
};

/// Reads the variables of Open MPI, then MPICH, Intel MPI and MVAPICH2, then of a Slurm step. nullopt if none are set;
/// `invalid_argument` for invalid values and for a heterogeneous Slurm job.
[[nodiscard]] Result<std::optional<StartedRank>> find_started_rank(const Environment& variables);

}  // namespace ddrun::cluster
