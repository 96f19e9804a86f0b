#include "ddrun/base/text.hpp"
#include "schemes.hpp"

// PBS, LSF and SGE run a script on the first machine and list the others in a file; Flux starts tasks.

namespace ddrun::cluster {

namespace {

/// The words of each line.
std::vector<std::vector<std::string>> lines_of(std::string_view text) {
  std::vector<std::vector<std::string>> lines;
  for (const std::string& line : split(text, '\n')) {
    std::vector<std::string> words = split(trim_typed(line), ' ');
    std::erase_if(words, [](const std::string& word) { return trim(word).empty(); });
    if (!words.empty()) lines.push_back(std::move(words));
  }
  return lines;
}

Result<std::vector<std::string>> hosts_in(const DetectContext& context, const Fact<std::string>& file) {
  const auto text = context.read_file(file.value);
  if (!text) {
    return fail(Errc::not_found, concat(file.variable, ": cannot read ", file.value, "; give --env-detect=none"));
  }
  std::vector<std::string> hosts;
  for (auto& words : lines_of(*text)) hosts.push_back(std::move(words.front()));
  hosts = unique(hosts);
  if (hosts.empty()) {
    return fail(Errc::invalid_argument,
                concat(file.variable, ": ", file.value, " names no host; give --env-detect=none"));
  }
  return hosts;
}

/// The result for a script on the first of `hosts`, or on all if something started it there. `all_of_them`: the option
/// with which one ddrun uses all hosts. `starter`: the command that starts a program on each.
Detected script_on(const DetectContext& context, std::string_view scheme, Fact<std::vector<std::string>> hosts,
                   const std::string& id, const std::string& id_variable, std::string_view all_of_them,
                   std::string_view starter) {
  Detected detected;
  detected.scheme = scheme;
  detected.shape = Shape::script;
  const int count = static_cast<int>(hosts.value.size());
  detected.nodes = {{{count, count}, hosts.variable}};
  if (const auto at = position_of(context.machine, hosts.value)) {
    set_node_rank(detected, {*at, concat(hosts.variable, ", this host's place in it")});
  }
  detected.job_id = {{as_job_id(id), id_variable}};
  detected.coordinators = {{candidates(hosts.value.front(), id), hosts.variable}};
  if (count > 1) {
    detected.refusal = concat("this ", scheme, " job has ", count, " machines (", hosts.variable,
                              "), and its script runs on one of them; for all of them write: ddrun ", all_of_them,
                              " ... (over ssh), or start one ddrun on each with --nnodes=", count, " (", starter,
                              "), the rest is found; for this machine alone: --nnodes=1");
  }
  detected.hosts = std::move(hosts);
  return detected;
}

}  // namespace

DetectResult find_pbs(const DetectContext& context) {
  const auto job = text_of(context.variables, "PBS_JOBID");
  const auto file = text_of(context.variables, "PBS_NODEFILE");
  if (!job || !file || !context.variables.get("PBS_ENVIRONMENT")) return std::optional<Detected>{};
  auto hosts = TRY(hosts_in(context, *file));
  Detected detected = script_on(context, "PBS", {std::move(hosts), "PBS_NODEFILE"}, concat("pbs-", job->value),
                                "PBS_JOBID", "--hostfile=$PBS_NODEFILE", "pbsdsh -u");
  // Torque's node number does not depend on host names.
  const auto node = TRY(number_of(context.variables, "PBS_NODENUM", 0, node_limit));
  if (node) {
    if (node->value >= detected.nodes->value.max) {
      return contradiction(concat("PBS_NODENUM=", node->value),
                           concat("PBS_NODEFILE with ", detected.nodes->value.max, " hosts"));
    }
    set_node_rank(detected, *node);
  }
  return detected;
}

DetectResult find_lsf(const DetectContext& context) {
  const auto job = text_of(context.variables, "LSB_JOBID");
  const auto counts = text_of(context.variables, "LSB_MCPU_HOSTS");
  const auto file = text_of(context.variables, "LSB_DJOB_HOSTFILE");
  if (!job || (!counts && !file)) return std::optional<Detected>{};
  Fact<std::vector<std::string>> hosts;
  if (counts) {
    const auto lines = lines_of(counts->value);
    for (std::size_t i = 0; !lines.empty() && i < lines.front().size(); i += 2) hosts.value.push_back(lines.front()[i]);
    hosts.variable = counts->variable;
    hosts.value = unique(hosts.value);
  } else {
    hosts = {TRY(hosts_in(context, *file)), file->variable};
  }
  if (hosts.value.empty()) return std::optional<Detected>{};
  // Where jsrun starts the ranks, the first host only runs the script.
  const bool jsrun = context.variables.has("JSM_NAMESPACE_RANK") || context.variables.has("CSM_ALLOCATION_ID");
  if (jsrun && hosts.value.size() > 1) hosts.value.erase(hosts.value.begin());
  const std::string all_of_them = file ? "--hostfile=$LSB_DJOB_HOSTFILE" : concat("--hosts=", join(hosts.value, ","));
  Detected detected =
      script_on(context, "LSF", std::move(hosts), concat("lsf-", job->value), "LSB_JOBID", all_of_them, "blaunch");
  const auto rank = TRY(number_of(context.variables, "JSM_NAMESPACE_RANK", 0, node_limit));
  const auto size = TRY(number_of(context.variables, "JSM_NAMESPACE_SIZE", 1, node_limit));
  if (rank && size) {
    const int nodes = detected.nodes->value.max;
    detected.refusal.clear();
    if (size->value > nodes) {
      detected.shape = Shape::ranks;
      detected.refusal =
          concat("jsrun started ", size->value, " ddruns on ", counted(nodes, "node"),
                 " (JSM_NAMESPACE_SIZE), and each would start workers of its own; write: jsrun -r 1 ddrun "
                 "--nproc-per-node=",
                 (size->value + nodes - 1) / nodes, " ...");
      return detected;
    }
    detected.shape = Shape::agents;
    detected.nodes = {{{size->value, size->value}, "JSM_NAMESPACE_SIZE"}};
    set_node_rank(detected, *rank);
  }
  return detected;
}

DetectResult find_sge(const DetectContext& context) {
  const auto job = text_of(context.variables, "JOB_ID");
  const auto file = text_of(context.variables, "PE_HOSTFILE");
  if (!job || !file) return std::optional<Detected>{};
  auto hosts = TRY(hosts_in(context, *file));
  return script_on(context, "SGE", {std::move(hosts), "PE_HOSTFILE"}, concat("sge-", job->value), "JOB_ID",
                   "--hostfile=$PE_HOSTFILE", "qrsh -inherit");
}

DetectResult find_flux(const DetectContext& context) {
  const auto job = text_of(context.variables, "FLUX_JOB_ID");
  const auto rank = number_of(context.variables, "FLUX_TASK_RANK", 0, node_limit);
  const auto nodes = number_of(context.variables, "FLUX_JOB_NNODES", 1, node_limit);
  const auto size = number_of(context.variables, "FLUX_JOB_SIZE", 1, node_limit);
  for (const auto* number : {&rank, &nodes, &size}) {
    if (!*number) return tl::unexpected<Error>(number->error());
  }
  if (!job || !*rank || !*nodes) return std::optional<Detected>{};
  Detected detected;
  detected.scheme = "Flux";
  detected.shape = Shape::agents;
  detected.nodes = {{{(*nodes)->value, (*nodes)->value}, "FLUX_JOB_NNODES"}};
  detected.job_id = {{concat("flux-", as_job_id(job->value)), "FLUX_JOB_ID"}};
  if (*size && (*size)->value > (*nodes)->value) {
    detected.shape = Shape::ranks;
    detected.refusal = concat(
        "flux run started ", (*size)->value, " ddruns on ", counted((*nodes)->value, "node"),
        " (FLUX_JOB_SIZE), and each would start workers of its own; write: flux run -N ", (*nodes)->value, " -n ",
        (*nodes)->value, " ddrun --nproc-per-node=", ((*size)->value + (*nodes)->value - 1) / (*nodes)->value, " ...");
    return detected;
  }
  if ((*rank)->value >= (*nodes)->value) {
    return contradiction(concat("FLUX_TASK_RANK=", (*rank)->value), concat("FLUX_JOB_NNODES=", (*nodes)->value));
  }
  // One task per node: the task rank is the node rank.
  set_node_rank(detected, **rank);
  return detected;
}

}  // namespace ddrun::cluster
