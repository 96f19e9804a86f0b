#include "ddrun/cluster/detect.hpp"

#include <ifaddrs.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>

#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "schemes.hpp"

namespace ddrun::cluster {

namespace {

/// A detectable scheme. To add one: a function and a row in `schemes`.
struct Scheme {
  std::string_view name;  ///< value of --env-detect
  /// Prefixes of variables without which the scheme is absent.
  std::array<std::string_view, 2> variable_prefixes;
  DetectResult (*find)(const DetectContext&);
  int level;               ///< precedence: the higher one wins; equal ones must agree
  bool starts_ranks;       ///< starts ranks, as mpirun does, which changes the meaning of Slurm's variables
  std::string_view known;  ///< its variables, for messages
};

// Levels.
constexpr int torchrun_level = 100;
constexpr int mpi_level = 80;       ///< mpirun inside a batch job
constexpr int inner_level = 70;     ///< a system on top of others
constexpr int platform_level = 60;  ///< set by a machine for all processes
constexpr int batch_level = 50;
constexpr int hint_level = 20;  ///< partial information, used if no other scheme has it
constexpr int plain_level = 10;

constexpr Scheme schemes[] = {
    {"slurm", {"SLURM_JOB"}, find_slurm, batch_level, false, "SLURM_JOB_ID"},
    {"openmpi",
     {"OMPI_COMM_WORLD_RANK="},
     find_open_mpi,
     mpi_level,
     true,
     "OMPI_COMM_WORLD_RANK, _SIZE and _LOCAL_SIZE"},
    {"mpich",
     {"PMI_RANK=", "MV2_COMM_WORLD_RANK="},
     find_mpich,
     mpi_level,
     true,
     "PMI_RANK, PMI_SIZE and MPI_LOCALNRANKS"},
    {"flux", {"FLUX_JOB_ID="}, find_flux, inner_level, false, "FLUX_JOB_ID, FLUX_TASK_RANK and FLUX_JOB_NNODES"},
    {"pbs", {"PBS_JOBID="}, find_pbs, batch_level, false, "PBS_ENVIRONMENT, PBS_JOBID and PBS_NODEFILE"},
    {"lsf", {"LSB_JOBID="}, find_lsf, batch_level, false, "LSB_JOBID and LSB_MCPU_HOSTS or LSB_DJOB_HOSTFILE"},
    {"sge", {"PE_HOSTFILE="}, find_sge, batch_level, false, "JOB_ID and PE_HOSTFILE"},
    {"torchrun",
     {"PET_"},
     find_torchrun,
     torchrun_level,
     false,
     "PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR or PET_RDZV_ENDPOINT"},
    {"kubernetes",
     {"JOB_COMPLETION_INDEX=", "LWS_LEADER_ADDRESS="},
     find_kubernetes,
     inner_level,
     false,
     "KUBERNETES_SERVICE_HOST and JOB_COMPLETION_INDEX, or LWS_LEADER_ADDRESS"},
    {"skypilot", {"SKYPILOT_NODE_RANK="}, find_skypilot, inner_level, false, "SKYPILOT_NODE_RANK"},
    {"dstack", {"DSTACK_NODE_RANK="}, find_dstack, inner_level, false, "DSTACK_NODE_RANK"},
    {"sagemaker", {"SM_HOSTS="}, find_sagemaker, inner_level, false, "SM_HOSTS and SM_CURRENT_HOST"},
    {"azureml", {"AZUREML_NODE_COUNT="}, find_azureml, inner_level, false, "AZUREML_NODE_COUNT"},
    {"volcano",
     {"VC_TASK_INDEX=", "VK_TASK_INDEX="},
     find_volcano,
     inner_level,
     false,
     "VC_TASK_INDEX and VC_WORKER_HOSTS"},
    {"horovod",
     {"HOROVOD_CROSS_RANK="},
     find_horovod,
     mpi_level,
     true,
     "HOROVOD_CROSS_RANK, HOROVOD_CROSS_SIZE and HOROVOD_LOCAL_SIZE"},
    {"tpu", {"TPU_WORKER_HOSTNAMES="}, find_tpu, platform_level, false, "TPU_WORKER_HOSTNAMES and TPU_WORKER_ID"},
    {"torchx", {"TORCHX_RANK0_HOST="}, find_torchx, hint_level, false, "TORCHX_RANK0_HOST"},
    {"plain", {"MASTER_ADDR="}, find_plain, plain_level, false, "MASTER_ADDR and NODE_RANK"},
};

constexpr std::string_view builtin_schemes = "auto none";
constexpr std::size_t scheme_names_size = [] {
  std::size_t size = builtin_schemes.size();
  for (const Scheme& scheme : schemes) size += 1 + scheme.name.size();
  return size;
}();
constexpr auto scheme_names = [] {
  std::array<char, scheme_names_size> text{};
  auto* end = std::copy(builtin_schemes.begin(), builtin_schemes.end(), text.begin());
  for (const Scheme& scheme : schemes) {
    *end++ = ' ';
    end = std::copy(scheme.name.begin(), scheme.name.end(), end);
  }
  return text;
}();

std::string shown(int number) { return std::to_string(number); }
std::string shown(std::int64_t number) { return std::to_string(number); }
std::string shown(bool yes) { return yes ? "yes" : "no"; }
std::string shown(const std::string& text) { return text; }
std::string shown(const NodeRange& nodes) {
  return nodes.min == nodes.max ? std::to_string(nodes.max) : concat(nodes.min, ":", nodes.max);
}
std::string shown(const std::vector<std::string>& words) { return short_list(words); }
std::string shown(const std::vector<Endpoint>& endpoints) {
  std::vector<std::string> words;
  for (const Endpoint& endpoint : endpoints) words.push_back(endpoint_text(endpoint));
  return short_list(words);
}

/// The result of one scheme.
struct SchemeResult {
  int level;
  Detected detected;
};

/// Merges the results of several schemes, added in order of precedence.
class EvidenceMerger {
 public:
  Result<void> add(const SchemeResult& found) {
    const Detected& from = found.detected;
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
        merge_field("nodes", found, &Detected::nodes),
        merge_field("node rank", found, &Detected::node_rank),
        merge_field("hosts", found, &Detected::hosts),
        merge_field("coordinator", found, &Detected::coordinators),
        merge_field("coordinator is here", found, &Detected::is_host),
        merge_field("job", found, &Detected::job_id),
        merge_field("GPUs", found, &Detected::gpus),
        merge_field("end of the job", found, &Detected::end_time),
    };
    for (const auto& one : done) {
      if (!one) return one;
    }
    whole_.evidence.insert(whole_.evidence.end(), from.evidence.begin(), from.evidence.end());
    return {};
  }

  Detected take_result() { return std::move(whole_); }

 private:
  template <class T>
  Result<void> merge_field(std::string_view what, const SchemeResult& found, Maybe<T> Detected::*field) {
    const Maybe<T>& found_field = found.detected.*field;
    if (!found_field) return {};
    Maybe<T>& merged_field = whole_.*field;
    const std::string value = shown(found_field->value);
    if (!merged_field) {
      merged_field = found_field;
      levels_[std::string(what)] = found.level;
      whole_.evidence.push_back({std::string(what), value, found_field->variable, ""});
      return {};
    }
    const std::string merged_value = shown(merged_field->value);
    if (levels_[std::string(what)] == found.level && merged_value != value) {
      return contradiction(concat(merged_field->variable, " (", what, ": ", merged_value, ")"),
                           concat(found_field->variable, " (", what, ": ", value, ")"),
                           "say with --env-detect=WORD which one counts, or none");
    }
    whole_.evidence.push_back({std::string(what), value, found_field->variable, merged_field->variable});
    return {};
  }

  Detected whole_;
  std::map<std::string, int> levels_;
};

/// Whether ddrun was started by a worker, which inherits its launcher's variables.
bool is_worker(const Environment& variables) {
  return variables.has("TORCHELASTIC_RUN_ID") && variables.get("LOCAL_RANK").has_value();
}

}  // namespace

constinit const std::string_view detect_schemes(scheme_names.data(), scheme_names.size());

bool has_scheduler_variables(const Environment& variables) {
  for (const std::string_view entry : variables.entries()) {
    for (const Scheme& scheme : schemes) {
      for (const std::string_view prefix : scheme.variable_prefixes) {
        if (!prefix.empty() && entry.starts_with(prefix)) return true;
      }
    }
  }
  return false;
}

Result<Detected> detect(const Environment& variables, const ReadFile& read_file, const Machine& machine,
                        std::string_view how) {
  if (how == "none") return Detected{};
  const bool automatic = how == "auto";
  if (automatic && is_worker(variables)) {
    // ddrun's workers inherit no MPI launcher's ranks: the worker has started that one. With --keep-scheduler-env it
    // may be the job's own launcher, which has counted the same machines.
    for (const std::string_view launcher : {"openmpi", "mpich"}) {
      if (!variables.has("DDRUN_ROUND")) break;
      auto inner = detect(variables, read_file, machine, launcher);
      const bool outer = inner && inner->nodes && inner->node_rank &&
                         variables.get("GROUP_WORLD_SIZE") == shown(inner->nodes->value) &&
                         variables.get("GROUP_RANK") == shown(inner->node_rank->value);
      if (!outer && (inner || inner.error().code != Errc::not_found)) return inner;
    }
    Detected nothing;
    nothing.evidence.push_back({"worker", std::string(variables.get("LOCAL_RANK").value_or("")), "LOCAL_RANK",
                                "nothing: ddrun was started by a worker of another job"});
    return nothing;
  }
  DetectContext context{variables, read_file, machine};
  std::vector<SchemeResult> all;
  for (const Scheme& scheme : schemes) {
    if (!scheme.starts_ranks || (!automatic && how != scheme.name)) continue;
    auto found = TRY(scheme.find(context));
    if (!found) continue;
    context.under_mpi = true;
    all.push_back({scheme.level, std::move(*found)});
    break;
  }
  for (const Scheme& scheme : schemes) {
    if (scheme.starts_ranks || (!automatic && how != scheme.name)) continue;
    auto found = TRY(scheme.find(context));
    if (found) all.push_back({scheme.level, std::move(*found)});
  }
  if (!automatic && all.empty()) {
    for (const Scheme& scheme : schemes) {
      if (scheme.name != how) continue;
      return fail(Errc::not_found,
                  concat("--env-detect=", how, ": nothing of it is there; it is known by ", scheme.known));
    }
    return fail(Errc::invalid_argument, concat("--env-detect=", how, " is not one of ", detect_schemes));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const SchemeResult& a, const SchemeResult& b) { return a.level > b.level; });
  EvidenceMerger merger;
  for (const SchemeResult& found : all) TRY(merger.add(found));
  return merger.take_result();
}

// ---- this machine

Machine this_machine() {
  Machine machine;
  std::array<char, HOST_NAME_MAX + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) == 0) machine.host_name = name.data();
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) == 0) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr) continue;
      const int family = each->ifa_addr->sa_family;
      if (family != AF_INET && family != AF_INET6) continue;
      std::array<char, NI_MAXHOST> text{};
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (::getnameinfo(each->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0) {
        machine.addresses.emplace_back(text.data());
      }
    }
    ::freeifaddrs(list);
  }
  machine.pid = ::getpid();
  return machine;
}

std::optional<std::string> read_text_file(const std::string& path) { return read_small_file(path, 16U << 20U); }

}  // namespace ddrun::cluster
