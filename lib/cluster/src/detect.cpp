#include "ddrun/cluster/detect.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "ddrun/base/text.hpp"
#include "findings.hpp"

namespace ddrun::cluster {

namespace {

struct Scheme {
  std::string_view word;
  Found (*find)(const Surroundings&);
  std::string_view sign;  ///< the variables by which it is known
};

constexpr std::array<Scheme, 18> schemes{{
    {"slurm", find_slurm, "SLURM_JOB_ID"},
    {"openmpi", find_open_mpi, "OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_SIZE"},
    {"mpich", find_mpich, "PMI_RANK, PMI_SIZE and MPI_LOCALNRANKS"},
    {"horovod", find_horovod, "HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE and HOROVOD_LOCAL_SIZE"},
    {"flux", find_flux, "FLUX_JOB_ID, FLUX_TASK_RANK and FLUX_JOB_NNODES"},
    {"pbs", find_pbs, "PBS_ENVIRONMENT, PBS_JOBID and PBS_NODEFILE"},
    {"lsf", find_lsf, "LSB_JOBID and LSB_MCPU_HOSTS or LSB_DJOB_HOSTFILE"},
    {"sge", find_sge, "JOB_ID and PE_HOSTFILE"},
    {"torchrun", find_torchrun, "PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR or PET_RDZV_ENDPOINT"},
    {"kubernetes", find_kubernetes, "KUBERNETES_SERVICE_HOST and JOB_COMPLETION_INDEX, or LWS_LEADER_ADDRESS"},
    {"skypilot", find_skypilot, "SKYPILOT_NODE_RANK"},
    {"dstack", find_dstack, "DSTACK_NODE_RANK"},
    {"sagemaker", find_sagemaker, "SM_HOSTS and SM_CURRENT_HOST"},
    {"azureml", find_azureml, "AZUREML_NODE_COUNT"},
    {"volcano", find_volcano, "VC_TASK_INDEX and VC_WORKER_HOSTS"},
    {"tpu", find_tpu, "TPU_WORKER_HOSTNAMES and TPU_WORKER_ID"},
    {"torchx", find_torchx, "TORCHX_RANK0_HOST"},
    {"plain", find_plain, "MASTER_ADDR and NODE_RANK"},
}};

std::string shown(int number) { return std::to_string(number); }
std::string shown(std::int64_t number) { return std::to_string(number); }
std::string shown(bool yes) { return yes ? "yes" : "no"; }
std::string shown(const std::string& text) { return text; }
std::string shown(const NodeRange& nodes) {
  return nodes.least == nodes.most ? std::to_string(nodes.most) : concat(nodes.least, ":", nodes.most);
}
std::string shown(const std::vector<std::string>& words) { return short_list(words); }
std::string shown(const std::vector<Endpoint>& endpoints) {
  std::vector<std::string> words;
  for (const Endpoint& endpoint : endpoints) words.push_back(endpoint_text(endpoint));
  return short_list(words);
}

/// Started by what also starts ranks: what Slurm says to such a process means something else.
bool is_of_mpi(std::string_view word) { return word == "openmpi" || word == "mpich" || word == "horovod"; }

/// Puts together what several schemes say, the strongest first.
class Together {
 public:
  Result<void> add(const Findings& found) {
    const Detected& from = found.said;
    if (!whole_.scheme.empty()) whole_.scheme += ", then ";
    whole_.scheme += from.scheme;
    if (whole_.shape == Shape::none && from.shape != Shape::none) {
      whole_.shape = from.shape;
      whole_.agents = from.agents;
      whole_.refusal = from.refusal;
      whole_.in_step = from.in_step;
    } else if (whole_.shape == Shape::none && whole_.refusal.empty()) {
      whole_.refusal = from.refusal;
    }
    whole_.standalone = whole_.standalone || from.standalone;
    const Result<void> done[] = {
        take("nodes", found, &Detected::nodes),
        take("node rank", found, &Detected::node_rank),
        take("hosts", found, &Detected::hosts),
        take("coordinator", found, &Detected::coordinators),
        take("coordinator is here", found, &Detected::is_host),
        take("job", found, &Detected::job_id),
        take("GPUs", found, &Detected::gpus),
        take("end of the job", found, &Detected::end_time),
    };
    for (const auto& one : done) {
      if (!one) return one;
    }
    whole_.evidence.insert(whole_.evidence.end(), from.evidence.begin(), from.evidence.end());
    return {};
  }

  Detected take_all() { return std::move(whole_); }

 private:
  template <class T>
  Result<void> take(std::string_view what, const Findings& found, Maybe<T> Detected::*field) {
    const Maybe<T>& theirs = found.said.*field;
    if (!theirs) return {};
    Maybe<T>& ours = whole_.*field;
    const std::string value = shown(theirs->value);
    if (!ours) {
      ours = theirs;
      levels_[std::string(what)] = found.level;
      whole_.evidence.push_back({std::string(what), value, theirs->variable, ""});
      return {};
    }
    const std::string our_value = shown(ours->value);
    if (levels_[std::string(what)] == found.level && our_value != value) {
      return contradiction(concat(ours->variable, " (", what, ": ", our_value, ")"),
                           concat(theirs->variable, " (", what, ": ", value, ")"),
                           "say with --env-detect=WORD which one counts, or none");
    }
    whole_.evidence.push_back({std::string(what), value, theirs->variable, ours->variable});
    return {};
  }

  Detected whole_;
  std::map<std::string, int> levels_;
};

/// A worker of another launcher inherits all that was said to that launcher.
bool is_worker(const Environment& variables) {
  return variables.has("TORCHELASTIC_RUN_ID") && variables.get("LOCAL_RANK").has_value();
}

}  // namespace

bool worth_looking(const Environment& variables) {
  return variables.any_begins_with({"SLURM_JOB",
                                    "OMPI_COMM_WORLD_RANK=",
                                    "PMI_RANK=",
                                    "MV2_COMM_WORLD_RANK=",
                                    "FLUX_JOB_ID=",
                                    "PBS_JOBID=",
                                    "LSB_JOBID=",
                                    "PE_HOSTFILE=",
                                    "PET_",
                                    "JOB_COMPLETION_INDEX=",
                                    "LWS_LEADER_ADDRESS=",
                                    "SKYPILOT_NODE_RANK=",
                                    "DSTACK_NODE_RANK=",
                                    "SM_HOSTS=",
                                    "AZUREML_NODE_COUNT=",
                                    "VC_TASK_INDEX=",
                                    "VK_TASK_INDEX=",
                                    "HOROVOD_CROSS_RANK=",
                                    "TPU_WORKER_HOSTNAMES=",
                                    "TORCHX_RANK0_HOST=",
                                    "MASTER_ADDR="});
}

Result<Detected> detect(const Environment& variables, const ReadFile& read_file, const Machine& machine,
                        std::string_view how) {
  if (how == "none") return Detected{};
  const bool automatic = how == "auto";
  if (automatic && is_worker(variables)) {
    Detected nothing;
    nothing.evidence.push_back({"worker", std::string(variables.get("LOCAL_RANK").value_or("")), "LOCAL_RANK",
                                "nothing: ddrun was started by a worker of another job"});
    return nothing;
  }
  Surroundings around{variables, read_file, machine};
  std::vector<Findings> all;
  for (const auto& [word, find, sign] : schemes) {
    if (!is_of_mpi(word) || (!automatic && how != word)) continue;
    auto found = find(around);
    if (!found) return tl::unexpected<Error>(found.error());
    if (!*found) continue;
    around.under_mpi = true;
    all.push_back(std::move(**found));
    break;
  }
  for (const auto& [word, find, sign] : schemes) {
    if (is_of_mpi(word) || (!automatic && how != word)) continue;
    auto found = find(around);
    if (!found) return tl::unexpected<Error>(found.error());
    if (*found) all.push_back(std::move(**found));
  }
  if (!automatic && all.empty()) {
    for (const Scheme& scheme : schemes) {
      if (scheme.word != how) continue;
      return fail(Errc::not_found,
                  concat("--env-detect=", how, ": nothing of it is there; it is known by ", scheme.sign));
    }
    return fail(Errc::invalid_argument, concat("--env-detect=", how, " is not one of ", detect_words));
  }
  std::stable_sort(all.begin(), all.end(), [](const Findings& a, const Findings& b) { return a.level > b.level; });
  Together together;
  for (const Findings& found : all) {
    if (auto added = together.add(found); !added) return tl::unexpected<Error>(added.error());
  }
  return together.take_all();
}

}  // namespace ddrun::cluster
