#include "ddrun/base/duration.hpp"
#include "ddrun/base/text.hpp"
#include "schemes.hpp"

// torchrun's variables: PET_*, one per option, also set by Kubeflow, and the plain ones of scripts. lib/cli reads PET_*
// as options; here they are evaluated as a job description.

namespace ddrun::cluster {

namespace {

Result<Maybe<NodeRange>> nodes_of(const Environment& variables, std::string_view name) {
  const auto text = variables.get(name);
  if (!text) return Maybe<NodeRange>{};
  const std::size_t colon = text->find(':');
  const auto min = parse_integer(text->substr(0, colon), 1, node_limit);
  const auto max = colon == std::string_view::npos ? min : parse_integer(text->substr(colon + 1), 1, node_limit);
  if (!min || !max || *max < *min) {
    return fail(Errc::invalid_argument,
                concat(name, "=", *text, " is neither N nor MIN:MAX with 0 < MIN <= MAX; unset it"));
  }
  return Maybe<NodeRange>({{static_cast<int>(*min), static_cast<int>(*max)}, std::string(name)});
}

Result<void> read_rank(Detected& detected, const Environment& variables, const std::vector<std::string_view>& names) {
  auto rank = TRY(first_number_of(variables, names, 0, node_limit));
  if (!rank) return {};
  // In an elastic job a higher rank may be a spare; with one machine it is ignored.
  if (detected.nodes && detected.nodes->value.max > 1 && detected.nodes->value.min == detected.nodes->value.max &&
      rank->value >= detected.nodes->value.max) {
    return contradiction(concat(rank->variable, "=", rank->value),
                         concat(detected.nodes->variable, "=", detected.nodes->value.max),
                         "node ranks begin with 0; correct the wrong one");
  }
  set_node_rank(detected, *rank);
  return {};
}

Result<void> read_master(Detected& detected, const Environment& variables, std::string_view prefix, int standard_port) {
  const std::string port_name = concat(prefix, "MASTER_PORT");
  const auto address = text_of(variables, concat(prefix, "MASTER_ADDR"));
  if (!address) return {};
  const auto port = TRY(number_of(variables, port_name, 1, 65535));
  const int number = port ? port->value : standard_port;
  detected.coordinators = {{{{address->value, static_cast<std::uint16_t>(number)}},
                            port ? concat(address->variable, ", ", port_name) : address->variable}};
  return {};
}

bool any_set(const Environment& variables, const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) {
    if (variables.get(name)) return true;
  }
  return false;
}

}  // namespace

DetectResult find_torchrun(const DetectContext& context) {
  const Environment& variables = context.variables;
  // Kubeflow sets it to an empty value, on which torchrun itself fails.
  const bool standalone = variables.has("PET_STANDALONE") && !variables.get("PET_STANDALONE");
  if (!standalone && !any_set(variables, {"PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_RDZV_ENDPOINT"})) {
    return std::optional<Detected>{};
  }
  Detected detected;
  detected.scheme = "torchrun's PET_ variables";
  detected.standalone = standalone;
  detected.nodes = TRY(nodes_of(variables, "PET_NNODES"));
  TRY(read_rank(detected, variables, {"PET_NODE_RANK"}));
  TRY(read_master(detected, variables, "PET_", 29500));
  if (!variables.get("KUBERNETES_SERVICE_HOST")) return detected;
  detected.shape = Shape::agents;
  // A pod of Kubeflow. Version 1 also sets MASTER_ADDR, and RANK to the pod's index.
  const auto master = text_of(variables, "MASTER_ADDR");
  if (master && variables.get("PET_NNODES")) {
    detected.scheme = "Kubeflow PyTorchJob";
    if (!detected.coordinators) TRY(read_master(detected, variables, "", 23456));
    if (const auto rank = text_of(variables, "RANK")) {
      detected.evidence.push_back({"RANK", rank->value, rank->variable, "nothing: it is the pod's index here"});
    }
    if (const auto size = text_of(variables, "WORLD_SIZE")) {
      detected.evidence.push_back({"WORLD_SIZE", size->value, size->variable, "nothing: ddrun counts workers itself"});
    }
  } else if (variables.get("PET_MASTER_ADDR") && variables.get("PET_NODE_RANK")) {
    detected.scheme = "Kubeflow Trainer";
  }
  // Without ranks the endpoint names the coordinator's pod.
  const auto endpoint = text_of(variables, "PET_RDZV_ENDPOINT");
  if (endpoint && !detected.node_rank) {
    const std::string_view host = std::string_view(endpoint->value).substr(0, endpoint->value.rfind(':'));
    const std::string_view own = context.machine.host_name;
    detected.is_host = {{!own.empty() && names_same_host(host, own), "PET_RDZV_ENDPOINT, the pod's name"}};
  }
  return detected;
}

DetectResult find_plain(const DetectContext& context) {
  const Environment& variables = context.variables;
  // With LOCAL_RANK a launcher has started ranks, and these variables describe ranks.
  if (!variables.get("MASTER_ADDR") || variables.get("LOCAL_RANK") ||
      !any_set(variables, {"NODE_RANK", "GROUP_RANK"})) {
    return std::optional<Detected>{};
  }
  Detected detected;
  detected.scheme = "MASTER_ADDR and NODE_RANK";
  detected.nodes = TRY(nodes_of(variables, "NNODES"));
  TRY(read_rank(detected, variables, {"NODE_RANK", "GROUP_RANK"}));
  TRY(read_master(detected, variables, "", 29500));
  return detected;
}

}  // namespace ddrun::cluster
