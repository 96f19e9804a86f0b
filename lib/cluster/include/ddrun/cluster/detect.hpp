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

// "Where am I?": what a scheduler or another launcher tells its processes about the job. docs/schedulers.md has the
// variables of each.

// What detection looks at. All of it comes in as arguments, so that a test can be any machine.

/// The text of a file; nothing if it cannot be read.
using ReadFile = std::function<std::optional<std::string>(const std::string& path)>;

struct Machine {
  std::string host_name;               ///< as gethostname() says
  std::vector<std::string> addresses;  ///< of its interfaces, as text
  std::int64_t pid = 0;                ///< of the ddrun that was started; 0: unknown
};

/// This one. Does not block: no name is looked up.
[[nodiscard]] Machine this_machine();

/// A ReadFile for real files, at most 16 MiB of each.
[[nodiscard]] std::optional<std::string> read_text_file(const std::string& path);

/// How many ddruns the scheme started.
enum class Shape {
  none,          ///< it says nothing about that
  agents,        ///< one on each machine: what ddrun wants
  ranks,         ///< one for each worker: each would start a group of its own
  slurm_script,  ///< one, on the first machine of a Slurm job; srun starts more
  script,        ///< perhaps only one, on the first machine; ddrun or the user must start the others
};

/// A value and the variable that it was taken from.
template <class T>
struct Fact {
  T value{};
  std::string variable;  ///< "SLURM_STEP_NUM_NODES"
};
template <class T>
using Maybe = std::optional<Fact<T>>;

struct NodeRange {
  int least = 1;
  int most = 1;
  bool operator==(const NodeRange&) const = default;
};

/// One line of what `ddrun env` shows.
struct Evidence {
  std::string what;      ///< "nodes", "node rank", "coordinator"…
  std::string value;     ///< "4"
  std::string variable;  ///< where it was found
  std::string instead;   ///< empty: used; else what counts instead, or why it does not count
  bool operator==(const Evidence&) const = default;
};

struct Detected {
  std::string scheme;  ///< "Slurm step", for people; empty: nothing was found
  Shape shape = Shape::none;
  Maybe<NodeRange> nodes;
  int agents = 0;  ///< ddruns that were started at once, one on each machine; 0: not known
  Maybe<int> node_rank;
  Maybe<std::vector<std::string>> hosts;  ///< in order of node ranks
  Maybe<std::vector<Endpoint>> coordinators;
  Maybe<bool> is_host;
  Maybe<std::string> job_id;
  Maybe<int> gpus;               ///< on this machine, for this job
  Maybe<std::int64_t> end_time;  ///< when the scheduler ends the job, seconds since 1970
  bool in_step = false;          ///< shape `slurm_script`, but inside of an interactive step
  bool standalone = false;       ///< PET_STANDALONE is set and empty, as Kubeflow writes it
  /// Shape `ranks` or `script`, or something that is not understood: what to write instead. Counts only if the user
  /// did not say how many nodes there are.
  std::string refusal;
  std::vector<Evidence> evidence;
};

/// Words of --env-detect, blank-separated, "auto" and "none" first.
extern const std::string_view detect_schemes;

/// False if no variable is there that a scheme begins with: then detect() finds nothing, and its other arguments need
/// not be made.
[[nodiscard]] bool has_scheduler_variables(const Environment& variables);

/// Looks at variables, and at the files that they name. `how` is one of `detect_schemes`. Of several schemes torchrun's
/// PET_* come first, then the innermost (mpirun in a Slurm job: MPI's), the plain MASTER_ADDR and NODE_RANK last.
/// Does not block but for `read_file`. Fails if two sources contradict each other and none of them is the stronger one,
/// and if `how` names a scheme that is not there.
[[nodiscard]] Result<Detected> detect(const Environment& variables, const ReadFile& read_file, const Machine& machine,
                                      std::string_view how = "auto");

/// Three ports in 20000–32767, below those that systems give to outgoing connections, for jobs whose members agree on
/// nothing but a name: the coordinator takes the first that is free, agents try all.
[[nodiscard]] std::vector<Endpoint> candidates(const std::string& host, std::string_view job);

}  // namespace ddrun::cluster
