#include "ddrun/base/text.hpp"
#include "schemes.hpp"

// Pods of a LeaderWorkerSet, which sets size, index and leader, and of an Indexed Job (also in a JobSet), which sets
// the index. Kubeflow's pods have torchrun's variables: torchrun.cpp.

namespace ddrun::cluster {

namespace {

constexpr std::uint16_t pod_port = 29400;  ///< every pod has its own address

DetectResult leader_worker_set(const DetectContext& context, const Fact<std::string>& leader) {
  const auto size = TRY(number_of(context.variables, "LWS_GROUP_SIZE", 1, node_limit));
  const auto index = TRY(number_of(context.variables, "LWS_WORKER_INDEX", 0, node_limit));
  Detected detected;
  detected.scheme = "Kubernetes LeaderWorkerSet";
  detected.shape = Shape::agents;
  if (size) detected.nodes = {{{size->value, size->value}, "LWS_GROUP_SIZE"}};
  if (size && index && index->value >= size->value) {
    return contradiction(concat("LWS_WORKER_INDEX=", index->value), concat("LWS_GROUP_SIZE=", size->value));
  }
  if (index) set_node_rank(detected, *index);
  detected.coordinators = {{{{leader.value, pod_port}}, leader.variable}};
  detected.job_id = {{as_job_id(short_host_name(leader.value)), leader.variable}};
  return detected;
}

/// The pod's domain, "job.default.svc.cluster.local", from a line "10.0.0.7 name-2.job.default.svc.cluster.local
/// name-2" of its hosts file, which exists with a headless service; else empty.
std::string domain_of(const std::string& pod, const std::string& hosts_file) {
  for (const std::string& line : split(hosts_file, '\n')) {
    for (const std::string& part : split(line.substr(0, line.find('#')), '\t')) {
      for (const std::string& word : split(part, ' ')) {
        const std::string_view name = trim(word);
        if (name.size() > pod.size() + 1 && name.starts_with(pod) && name[pod.size()] == '.') {
          return std::string(name.substr(pod.size() + 1));
        }
      }
    }
  }
  return {};
}

}  // namespace

DetectResult find_kubernetes(const DetectContext& context) {
  if (const auto leader = text_of(context.variables, "LWS_LEADER_ADDRESS")) return leader_worker_set(context, *leader);
  const auto index = TRY(number_of(context.variables, "JOB_COMPLETION_INDEX", 0, node_limit));
  if (!index || !context.variables.get("KUBERNETES_SERVICE_HOST")) return std::optional<Detected>{};
  Detected detected;
  detected.scheme = "Kubernetes Indexed Job";
  set_node_rank(detected, *index);
  // The pods are named NAME-INDEX. No variable has their number.
  const std::string pod(short_host_name(context.machine.host_name));
  const std::string ending = concat("-", index->value);
  if (pod.size() > ending.size() && pod.ends_with(ending)) {
    const std::string name = pod.substr(0, pod.size() - ending.size());
    const std::string domain = domain_of(pod, context.read_file("/etc/hosts").value_or(""));
    detected.job_id = {{as_job_id(name), "the pod's name"}};
    if (!domain.empty()) {
      detected.coordinators = {{{{concat(name, "-0.", domain), pod_port}}, "the pod's name and /etc/hosts"}};
    }
  }
  return detected;
}

}  // namespace ddrun::cluster
