#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cluster/hosts.hpp"
#include "schemes.hpp"

// Slurm's variables differ in meaning between a step and a batch script: in a step smaller than its job the job's node
// list is wrong, and SLURM_NTASKS is the step's in a step but the job's in a script.

namespace ddrun::cluster {

namespace {

/// Slurm's internal steps: batch script, salloc's shell, external processes.
bool is_own_step(std::string_view id) {
  const auto number = parse_integer(id, 0, 0xffff'ffffLL);
  return number && *number >= 0xffff'fff0LL;
}

}  // namespace

Maybe<std::string> slurm_step(const Environment& variables) {
  auto step = first_text_of(variables, slurm_step_names);
  if (step && is_own_step(step->value)) return std::nullopt;
  return step;
}

bool is_heterogeneous_slurm(const Environment& variables) {
  return variables.get("SLURM_HET_SIZE").value_or("1") != "1";
}

std::string slurm_id(const Environment& variables, std::string_view job, std::string_view step) {
  std::string id(job);
  if (!step.empty()) id += concat(".", step);
  const std::string_view restart = variables.get("SLURM_RESTART_COUNT").value_or("0");
  if (restart != "0") id += concat(".r", restart);
  return id;
}

namespace {

class Slurm {
 public:
  explicit Slurm(const DetectContext& context) : variables_(context.variables), context_(context) {
    const auto step = slurm_step(variables_);
    // An interactive shell (srun --pty bash) is a step, too, but the user there means the job. If ddrun itself is the
    // task, the terminal is only for its output.
    const auto task = variables_.get("SLURM_TASK_PID");
    const bool shell = variables_.get("SLURM_PTY_PORT") && task != std::to_string(context.machine.pid);
    in_own_step_ = step.has_value();
    in_step_ = in_own_step_ && !shell && !context.under_mpi;
    if (step && in_step_) step_ = step->value;
  }

  DetectResult find(Fact<std::string> job) {
    Detected detected;
    detected.scheme = in_step_ ? "Slurm step" : "Slurm job";
    if (is_heterogeneous_slurm(variables_)) return heterogeneous();
    TRY(read_nodes(detected));
    TRY(read_shape(detected));
    const std::string id = slurm_id(variables_, job.value, step_);
    detected.job_id = Fact<std::string>{concat("slurm-", as_job_id(id)),
                                        step_.empty() ? job.variable : concat(job.variable, ", SLURM_STEP_ID")};
    if (detected.hosts)
      detected.coordinators = {{candidates(detected.hosts->value.front(), id), detected.hosts->variable}};
    if (detected.node_rank) detected.is_host = {{detected.node_rank->value == 0, detected.node_rank->variable}};
    const auto gpus = TRY(number_of(variables_, "SLURM_GPUS_ON_NODE", 0, 1000));
    if (gpus && gpus->value > 0) detected.gpus = gpus;
    if (const auto end = text_of(variables_, "SLURM_JOB_END_TIME")) {
      const auto seconds = parse_integer(end->value, 0, 1LL << 40);
      if (seconds) detected.end_time = {{*seconds, end->variable}};
    }
    return detected;
  }

 private:
  static DetectResult heterogeneous() {
    Detected detected;
    detected.scheme = "heterogeneous Slurm job";
    detected.refusal =
        "SLURM_HET_SIZE says that this Slurm job has several parts, which ddrun does not put together; give --nnodes, "
        "--node-rank and --rdzv-endpoint, or --nnodes=1 for this machine alone";
    return detected;
  }

  Result<void> read_nodes(Detected& detected) {
    using Names = std::vector<std::string_view>;
    const auto nodes =
        TRY(first_number_of(variables_,
                            in_step_ ? Names{"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}
                                     : Names{"SLURM_JOB_NUM_NODES", "SLURM_NNODES"},
                            1, node_limit));
    if (nodes) detected.nodes = {{{nodes->value, nodes->value}, nodes->variable}};
    const auto list =
        first_text_of(variables_, in_step_ ? slurm_step_hosts_names : Names{"SLURM_JOB_NODELIST", "SLURM_NODELIST"});
    if (!list) return {};
    auto hosts = expand_hostlist(list->value);
    if (!hosts) {
      return fail(Errc::invalid_argument,
                  concat(list->variable, ": ", hosts.error().message, "; give --env-detect=none and --rdzv-endpoint"));
    }
    const int count = static_cast<int>(hosts->size());
    if (detected.nodes && detected.nodes->value.max != count) {
      return contradiction(concat(detected.nodes->variable, "=", detected.nodes->value.max),
                           concat(list->variable, "=", list->value, ", which names ", counted(count, "node"), ","),
                           "unset the wrong one, or give --nnodes, --node-rank and --rdzv-endpoint with "
                           "--env-detect=none");
    }
    if (!detected.nodes) detected.nodes = {{{count, count}, list->variable}};
    detected.hosts = {{std::move(*hosts), list->variable}};
    return {};
  }

  Result<void> read_shape(Detected& detected) {
    if (context_.under_mpi) return {};
    if (!in_step_) {
      detected.shape = Shape::slurm_script;
      detected.in_step = in_own_step_;
      return {};
    }
    const auto tasks = TRY(first_number_of(variables_, slurm_step_tasks_names, 1, 100'000'000));
    const auto node = TRY(number_of(variables_, "SLURM_NODEID", 0, node_limit));
    if (node && detected.nodes && node->value >= detected.nodes->value.max) {
      return contradiction(concat("SLURM_NODEID=", node->value),
                           concat(detected.nodes->variable, "=", detected.nodes->value.max));
    }
    detected.node_rank = node;
    detected.shape = Shape::agents;
    if (tasks) detected.agents = tasks->value;
    if (tasks && detected.nodes && tasks->value > detected.nodes->value.max) {
      const int nodes = detected.nodes->value.max;
      const int each = (tasks->value + nodes - 1) / nodes;
      detected.shape = Shape::ranks;
      detected.refusal =
          concat("srun started ", tasks->value, " ddruns on ", counted(nodes, "node"), " (", tasks->variable,
                 "), and each would start workers of its own; write: srun --nodes=", nodes,
                 " --ntasks-per-node=1 ddrun --nproc-per-node=", each,
                 " ... (or --nnodes=1, if each is meant to be a job of its own)");
    }
    return {};
  }

  const Environment& variables_;
  const DetectContext& context_;
  bool in_step_ = false;
  bool in_own_step_ = false;
  std::string step_;
};

}  // namespace

DetectResult find_slurm(const DetectContext& context) {
  auto job = first_text_of(context.variables, slurm_job_names);
  if (!job) return std::optional<Detected>{};
  return Slurm(context).find(std::move(*job));
}

}  // namespace ddrun::cluster
