#include <algorithm>

#include "ddrun/base/text.hpp"
#include "schemes.hpp"

// Cloud services that start one process per machine and give its rank.

namespace ddrun::cluster {

namespace {

/// Names of a scheme's variables; empty: it has none.
struct Names {
  std::string_view scheme;
  std::vector<std::string_view> rank, nodes, hosts;
  std::string_view gpus, id;
};

std::vector<std::string> words_of(std::string_view text) {
  std::string plain(text);
  // Accepts lines, commas, or a JSON list.
  std::replace_if(
      plain.begin(), plain.end(),
      [](char c) { return c == '\n' || c == ',' || c == '[' || c == ']' || c == '"' || c == '\t'; }, ' ');
  std::vector<std::string> words = split(plain, ' ');
  std::erase_if(words, [](const std::string& word) { return trim(word).empty(); });
  return words;
}

DetectResult find_members(const DetectContext& context, const Names& names, int fixed_port) {
  const auto rank = TRY(first_number_of(context.variables, names.rank, 0, node_limit));
  const auto nodes = TRY(first_number_of(context.variables, names.nodes, 1, node_limit));
  const auto gpus =
      names.gpus.empty() ? Maybe<int>{} : number_of(context.variables, names.gpus, 0, 1000).value_or(std::nullopt);
  Detected detected;
  detected.scheme = names.scheme;
  detected.shape = Shape::agents;
  const auto list = first_text_of(context.variables, names.hosts);
  std::vector<std::string> hosts = list ? words_of(list->value) : std::vector<std::string>{};
  if (nodes) detected.nodes = {{{nodes->value, nodes->value}, nodes->variable}};
  else if (!hosts.empty())
    detected.nodes = {{{static_cast<int>(hosts.size()), static_cast<int>(hosts.size())}, list->variable}};
  if (rank && detected.nodes && rank->value >= detected.nodes->value.max) {
    return contradiction(concat(rank->variable, "=", rank->value),
                         concat(detected.nodes->variable, " with ", detected.nodes->value.max));
  }
  if (rank) set_node_rank(detected, *rank);
  const auto id = names.id.empty() ? Maybe<std::string>{} : text_of(context.variables, names.id);
  if (id) detected.job_id = {{as_job_id(id->value), id->variable}};
  if (!hosts.empty()) {
    const std::string first = hosts.front();
    detected.coordinators = {{fixed_port != 0 ? std::vector<Endpoint>{{first, static_cast<std::uint16_t>(fixed_port)}}
                                              : candidates(first, id ? id->value : first),
                              list->variable}};
    if (detected.nodes && static_cast<int>(hosts.size()) == detected.nodes->value.max) {
      detected.hosts = {{std::move(hosts), list->variable}};
    }
  }
  if (gpus && gpus->value > 0) detected.gpus = gpus;
  return detected;
}

}  // namespace

DetectResult find_skypilot(const DetectContext& context) {
  if (!context.variables.get("SKYPILOT_NODE_RANK")) return std::optional<Detected>{};
  return find_members(context,
                      {"SkyPilot",
                       {"SKYPILOT_NODE_RANK"},
                       {"SKYPILOT_NUM_NODES"},
                       {"SKYPILOT_NODE_IPS"},
                       "SKYPILOT_NUM_GPUS_PER_NODE",
                       "SKYPILOT_TASK_ID"},
                      0);
}

DetectResult find_dstack(const DetectContext& context) {
  if (!context.variables.get("DSTACK_NODE_RANK")) return std::optional<Detected>{};
  return find_members(context,
                      {"dstack",
                       {"DSTACK_NODE_RANK"},
                       {"DSTACK_NODES_NUM"},
                       {"DSTACK_MASTER_NODE_IP", "DSTACK_NODES_IPS"},
                       "DSTACK_GPUS_PER_NODE",
                       ""},
                      0);
}

DetectResult find_volcano(const DetectContext& context) {
  // With a master role there are two index ranges, and no variable tells which one applies.
  const bool has_index = context.variables.get("VC_TASK_INDEX") || context.variables.get("VK_TASK_INDEX");
  if (!has_index || !context.variables.get("VC_WORKER_HOSTS") || context.variables.get("VC_MASTER_HOSTS")) {
    return std::optional<Detected>{};
  }
  return find_members(
      context, {"Volcano", {"VC_TASK_INDEX", "VK_TASK_INDEX"}, {"VC_WORKER_NUM"}, {"VC_WORKER_HOSTS"}, "", ""}, 29400);
}

DetectResult find_sagemaker(const DetectContext& context) {
  const auto hosts = text_of(context.variables, "SM_HOSTS");
  const auto current = text_of(context.variables, "SM_CURRENT_HOST");
  if (!hosts || !current) return std::optional<Detected>{};
  auto found = TRY(find_members(context, {"SageMaker", {}, {}, {"SM_HOSTS"}, "SM_NUM_GPUS", ""}, 7777));
  const std::vector<std::string> list = words_of(hosts->value);
  const auto at = std::find(list.begin(), list.end(), current->value);
  if (at == list.end()) {
    return contradiction(concat("SM_CURRENT_HOST=", current->value), concat("SM_HOSTS=", hosts->value));
  }
  set_node_rank(*found, {static_cast<int>(at - list.begin()), "SM_CURRENT_HOST"});
  return found;
}

DetectResult find_azureml(const DetectContext& context) {
  if (!context.variables.get("AZUREML_NODE_COUNT") || context.variables.get("LOCAL_RANK")) {
    return std::optional<Detected>{};
  }
  auto found = TRY(find_members(
      context, {"Azure ML", {"NODE_RANK", "AZ_BATCHAI_TASK_INDEX"}, {"AZUREML_NODE_COUNT"}, {}, "", ""}, 0));
  Detected& detected = *found;
  if (const auto address = text_of(context.variables, "MASTER_ADDR")) {
    const auto port = TRY(number_of(context.variables, "MASTER_PORT", 1, 65535));
    const int number = port ? port->value : 29500;
    detected.coordinators = {{{{address->value, static_cast<std::uint16_t>(number)}}, "MASTER_ADDR"}};
  } else if (const auto master = text_of(context.variables, "AZ_BATCH_MASTER_NODE")) {
    const std::string host = master->value.substr(0, master->value.find(':'));
    detected.coordinators = {{candidates(host, host), master->variable}};
  }
  return found;
}

// Without slices the list names all machines; with several slices each one has its own list and numbering.
DetectResult find_tpu(const DetectContext& context) {
  const auto list = text_of(context.variables, "TPU_WORKER_HOSTNAMES");
  const auto id = number_of(context.variables, "TPU_WORKER_ID", 0, node_limit);
  const auto slices = number_of(context.variables, "MEGASCALE_NUM_SLICES", 1, 10'000);
  const auto slice = number_of(context.variables, "MEGASCALE_SLICE_ID", 0, 10'000);
  for (const auto* number : {&id, &slices, &slice}) {
    if (!*number) return tl::unexpected<Error>(number->error());
  }
  if (!list || !*id) return std::optional<Detected>{};
  std::vector<std::string> hosts = words_of(list->value);
  if (hosts.empty() || hosts.size() > 100'000) return std::optional<Detected>{};
  const int each = static_cast<int>(hosts.size());
  const int parts = *slices ? (*slices)->value : 1;
  const int part = *slice ? (*slice)->value : 0;
  if ((*id)->value >= each) {
    return contradiction(concat("TPU_WORKER_ID=", (*id)->value), concat("TPU_WORKER_HOSTNAMES with ", each));
  }
  if (part >= parts) {
    return contradiction(concat("MEGASCALE_SLICE_ID=", part), concat("MEGASCALE_NUM_SLICES=", parts));
  }
  const bool several = parts > 1;
  const std::int64_t nodes = std::int64_t{each} * parts;
  if (nodes > node_limit) {
    return fail(Errc::invalid_argument, concat("TPU_WORKER_HOSTNAMES and MEGASCALE_NUM_SLICES make ", nodes,
                                               " machines, more than ", node_limit, "; give --env-detect=none"));
  }
  const int rank = (*id)->value + part * each;
  Detected detected;
  detected.scheme = "TPU";
  detected.shape = Shape::agents;
  const std::string of_slices = several ? ", MEGASCALE_NUM_SLICES" : "";
  detected.nodes = {{{static_cast<int>(nodes), static_cast<int>(nodes)}, concat(list->variable, of_slices)}};
  set_node_rank(detected, {rank, concat("TPU_WORKER_ID", several ? ", MEGASCALE_SLICE_ID" : "")});
  if (!several) {
    detected.coordinators = {{{{hosts.front(), 29400}}, list->variable}};
    detected.hosts = {{std::move(hosts), list->variable}};
  } else if (const auto first = text_of(context.variables, "MEGASCALE_COORDINATOR_ADDRESS")) {
    // Its port, if any, belongs to another program.
    detected.coordinators = {{{{first->value.substr(0, first->value.find(':')), 29400}}, first->variable}};
  }
  return detected;
}

DetectResult find_torchx(const DetectContext& context) {
  const auto host = text_of(context.variables, "TORCHX_RANK0_HOST");
  if (!host) return std::optional<Detected>{};
  Detected detected;
  detected.scheme = "torchx";
  // On Slurm this is a hostlist, which Slurm's own variables cover; in a pod it is "localhost".
  const bool is_name = host->value.find_first_of("[], ") == std::string::npos;
  if (is_name && host->value != "localhost") detected.coordinators = {{{{host->value, 29400}}, host->variable}};
  if (const auto id = text_of(context.variables, "TORCHX_JOB_ID"))
    detected.job_id = {{as_job_id(id->value), id->variable}};
  return detected;
}

}  // namespace ddrun::cluster
