#include "ddrun/cluster/complete.hpp"

#include <algorithm>

#include "ddrun/base/text.hpp"
#include "schemes.hpp"

namespace ddrun::cluster {

namespace {

class Completer {
 public:
  Completer(LaunchSpec& spec, const GivenOptions& given, const Detected& detected)
      : spec_(spec), given_(given), detected_(detected) {
    result_.evidence = detected.evidence;
  }

  Result<Completion> run() {
    if (resolve_standalone()) return std::move(result_);
    RendezvousSpec& rendezvous = spec_.rendezvous;
    TRY(check_shape());
    if (has("nnodes")) {
      override_by_option("nodes", "nnodes");
    } else if (detected_.nodes) {
      rendezvous.min_nodes = detected_.nodes->value.min;
      rendezvous.max_nodes = detected_.nodes->value.max;
    }
    fill_gpus();
    if (rendezvous.max_nodes == 1) return one_machine();
    TRY(check_script());
    rendezvous.agents_expected = detected_.agents;
    fill_node_rank();
    TRY(fill_rendezvous());
    fill_id();
    TRY(check_lease());
    return std::move(result_);
  }

 private:
  [[nodiscard]] bool has(std::string_view option) const { return given_.find(option) != given_.end(); }
  [[nodiscard]] const std::string& where(std::string_view option) const { return given_.find(option)->second; }

  /// Sets the reason for evidence that is not overridden yet.
  void override_evidence(std::string_view what, const std::string& why) {
    for (Evidence& one : result_.evidence) {
      if (one.what == what && one.overridden_by.empty()) one.overridden_by = why;
    }
  }
  /// The user's option overrides the evidence, unless it is the same variable.
  void override_by_option(std::string_view what, std::string_view option) {
    for (Evidence& one : result_.evidence) {
      if (one.what == what && one.overridden_by.empty() && one.variable.find(where(option)) == std::string::npos) {
        one.overridden_by = where(option);
      }
    }
  }
  void override_all(const std::string& why) {
    for (Evidence& one : result_.evidence) {
      if (one.overridden_by.empty()) one.overridden_by = why;
    }
  }

  /// Handles --standalone and Kubeflow's empty PET_STANDALONE.
  bool resolve_standalone() {
    if (spec_.rendezvous.standalone) {
      override_all(has("standalone") ? where("standalone") : "--standalone");
      return true;
    }
    if (!detected_.standalone || has("nnodes")) return false;
    spec_.rendezvous.standalone = true;
    override_all("PET_STANDALONE");
    result_.remarks.emplace_back("PET_STANDALONE is set, though empty: this machine alone");
    return true;
  }

  Result<void> check_shape() const {
    if (detected_.refusal.empty()) return {};
    const bool single_node = has("nnodes") && spec_.rendezvous.max_nodes == 1;
    const bool nodes_given = detected_.shape == Shape::ranks ? single_node : has("nnodes");
    if (nodes_given) return {};
    return fail(Errc::invalid_argument, detected_.refusal);
  }

  void fill_gpus() {
    if (!detected_.gpus) return;
    if (spec_.has_several_programs()) {
      return override_evidence("GPUs", "each program's own -n: a count would be for all of them");
    }
    const NprocSpec::Kind kind = spec_.first().nproc.kind;
    const bool wants_gpus = kind == NprocSpec::Kind::gpu || kind == NprocSpec::Kind::automatic;
    if (has("nproc-per-node") && !wants_gpus) {
      override_by_option("GPUs", "nproc-per-node");
    } else if (spec_.rendezvous.max_nodes == 1 && !wants_gpus) {
      override_evidence("GPUs", "one worker, as without a scheduler; --nproc-per-node=gpu for one on each");
    } else if (!wants_gpus) {
      spec_.first().nproc = {NprocSpec::Kind::count, detected_.gpus->value};
      result_.remarks.push_back(
          concat(detected_.gpus->value, " workers on this machine, one for each GPU (", detected_.gpus->variable, ")"));
    }
  }

  Result<Completion> one_machine() {
    if (!has("nnodes")) {
      for (const std::string_view what : {"node rank", "coordinator", "coordinator is here", "job", "hosts"}) {
        override_evidence(what, "nothing: the job has one machine");
      }
    } else {
      for (const std::string_view what : {"node rank", "coordinator", "coordinator is here", "job", "hosts"}) {
        override_evidence(what, where("nnodes"));
      }
    }
    return std::move(result_);
  }

  Result<void> check_script() {
    if (detected_.shape != Shape::slurm_script || has("node-rank") || !detected_.nodes) return {};
    const RendezvousSpec& rendezvous = spec_.rendezvous;
    const int allocated = detected_.nodes->value.max;
    if (rendezvous.min_nodes > allocated) {
      // With an endpoint the other agents are started by other means.
      if (has("rdzv-endpoint")) return {};
      return fail(Errc::invalid_argument,
                  concat("--nnodes asks for ", rendezvous.min_nodes, " nodes, but the Slurm job has ", allocated, " (",
                         detected_.nodes->variable, "); ask Slurm for more, or give a smaller --nnodes"));
    }
    result_.start_agents = SlurmScript{std::min(rendezvous.max_nodes, allocated), detected_.in_step};
    return {};
  }

  void fill_node_rank() {
    RendezvousSpec& rendezvous = spec_.rendezvous;
    if (!detected_.node_rank) return;
    if (has("node-rank")) {
      override_by_option("node rank", "node-rank");
      const auto& [detected, variable] = *detected_.node_rank;
      if (detected != rendezvous.node_rank) rendezvous.other_node_rank = concat(variable, " is ", detected);
    } else if (rendezvous.min_nodes != rendezvous.max_nodes) {
      override_evidence("node rank", "order of arrival: the job is elastic");
    } else if (detected_.node_rank->value >= rendezvous.max_nodes) {
      override_evidence("node rank", concat("a spare: there are only ", rendezvous.max_nodes, " nodes in the job"));
    } else {
      rendezvous.node_rank = detected_.node_rank->value;
    }
  }

  Result<void> fill_rendezvous() {
    RendezvousSpec& rendezvous = spec_.rendezvous;
    if (rendezvous.has_lease()) return {};
    if (has("rdzv-endpoint") || !rendezvous.coordinators.empty()) {
      if (has("rdzv-endpoint")) {
        override_by_option("coordinator", "rdzv-endpoint");
        // For a pod that is named by the endpoint.
        const bool same = detected_.is_host && detected_.is_host->variable.find(where("rdzv-endpoint")) == 0;
        if (same && detected_.is_host->value && !rendezvous.is_host) rendezvous.is_host = true;
        if (!same) override_by_option("coordinator is here", "rdzv-endpoint");
      }
      return {};
    }
    if (detected_.coordinators) {
      rendezvous.coordinators = detected_.coordinators->value;
      if (rendezvous.is_host) override_evidence("coordinator is here", "--rdzv-conf is_host");
      else if (detected_.is_host) rendezvous.is_host = detected_.is_host->value;
      return {};
    }
    if (detected_.scheme.empty() || has("master-addr")) return {};
    return fail(Errc::invalid_argument,
                concat("there are ", rendezvous.max_nodes, " machines, but ", detected_.scheme,
                       detected_.scheme.ends_with("variables") ? " do" : " does",
                       " not say where they meet; give --rdzv-endpoint=HOST[:PORT] with the host of node rank 0"));
  }

  void fill_id() {
    // All agents need the same id.
    if (spec_.rendezvous.id.empty()) spec_.rendezvous.id = RendezvousSpec().id;
    if (!detected_.job_id) return;
    if (has("rdzv-id")) override_by_option("job", "rdzv-id");
    else spec_.rendezvous.id = detected_.job_id->value;
  }

  /// Checked here, because the number of machines and the scheduler's job id are known only now.
  [[nodiscard]] Result<void> check_lease() const {
    const RendezvousSpec& rendezvous = spec_.rendezvous;
    if (!rendezvous.has_lease()) return {};
    if (rendezvous.is_etcd() && rendezvous.endpoint.empty()) {
      return fail(
          Errc::invalid_argument,
          spec_.remote.asked_for()
              ? "--rdzv-backend=etcd has no effect with --hosts, where the first host runs the coordinator and no "
                "other one takes over; leave it out, or start ddrun on each machine"
              : "--rdzv-backend=etcd needs its members: --rdzv-endpoint=HOST:2379,HOST:2379,...");
    }
    if (rendezvous.id != RendezvousSpec().id) return {};
    return fail(Errc::invalid_argument,
                concat(rendezvous.is_etcd() ? "with etcd" : "with --rdzv-lease",
                       " each job needs a name of its own: --rdzv-id=NAME, the same on all machines"));
  }

  LaunchSpec& spec_;
  const GivenOptions& given_;
  const Detected& detected_;
  Completion result_;
};

}  // namespace

Result<Completion> complete(LaunchSpec& spec, const GivenOptions& given, const Detected& detected) {
  return Completer(spec, given, detected).run();
}

std::optional<Milliseconds> time_before_end(std::int64_t end_time, std::int64_t now, Milliseconds grace) {
  constexpr std::chrono::seconds kill_wait{25};
  const auto earlier = grace - kill_wait;
  if (earlier <= earlier.zero() || end_time <= now) return std::nullopt;
  const auto left = std::chrono::seconds(end_time - now) - earlier;
  if (left <= left.zero()) return std::nullopt;
  return std::chrono::duration_cast<Milliseconds>(left);
}

}  // namespace ddrun::cluster
