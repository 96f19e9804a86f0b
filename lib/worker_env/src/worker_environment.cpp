#include "ddrun/worker_env/worker_environment.hpp"

#include <signal.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/text.hpp"

namespace ddrun::worker_env {

namespace {

// docs/environment.md has the same lists.
constexpr std::array<std::string_view, 10> scheduler_prefixes{
    "PMI_",  "PMIX_",           "OMPI_COMM_WORLD_", "OMPI_MCA_ess_", "OMPI_MCA_orte_",
    "HYDI_", "MV2_COMM_WORLD_", "JSM_NAMESPACE_",   "PALS_",         "PRTE_"};
constexpr std::array<std::string_view, 13> scheduler_names{
    "SLURM_PROCID",    "SLURM_LOCALID",   "SLURM_NTASKS",         "SLURM_NPROCS",
    "SLURM_GTIDS",     "SLURM_TASK_PID",  "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE",
    "MPI_LOCALNRANKS", "MPI_LOCALRANKID", "FLUX_TASK_RANK",       "FLUX_TASK_LOCAL_ID",
    "PBS_TASKNUM"};
/// Their first letters, to skip most entries quickly.
constexpr std::string_view scheduler_initials = "FHJMOPS";

/// A rank variable of srun, mpirun and the like. ddrun's own values describe ddrun: every worker would be rank 0 of 1.
bool is_scheduler_rank(std::string_view name) {
  if (name.empty() || scheduler_initials.find(name.front()) == std::string_view::npos) return false;
  return std::any_of(scheduler_prefixes.begin(), scheduler_prefixes.end(),
                     [&](auto prefix) { return name.starts_with(prefix); }) ||
         std::find(scheduler_names.begin(), scheduler_names.end(), name) != scheduler_names.end();
}

/// Rank variables set by ddrun; --env must not override them.
struct OwnVariable {
  std::string_view name;
  std::string_view instead;  ///< the option to use instead of --env
};
constexpr std::array<OwnVariable, 24> own_variables{{
    {"RANK", ""},
    {"LOCAL_RANK", ""},
    {"WORLD_SIZE", "--nproc-per-node"},
    {"LOCAL_WORLD_SIZE", "--nproc-per-node"},
    {"GROUP_RANK", "--node-rank"},
    {"GROUP_WORLD_SIZE", "--nnodes"},
    {"ROLE_NAME", "--role"},
    {"ROLE_RANK", ""},
    {"ROLE_WORLD_SIZE", ""},
    {"MASTER_ADDR", "--master-addr"},
    {"MASTER_PORT", "--master-port"},
    {"TORCHELASTIC_RESTART_COUNT", ""},
    {"TORCHELASTIC_MAX_RESTARTS", "--max-restarts"},
    {"TORCHELASTIC_RUN_ID", "--rdzv-id"},
    {"TORCHELASTIC_USE_AGENT_STORE", ""},
    {"TORCHELASTIC_ERROR_FILE", "--log-dir"},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", "--signals-to-handle"},
    {"TORCHELASTIC_TIMER_FILE", ""},
    {"DDRUN_VERSION", ""},
    {"DDRUN_ROUND", ""},
    {"DDRUN_SEED", "--seed"},
    {"DDRUN_ATTEMPT_DIR", "--log-dir"},
    {"DDRUN_JOB_TAG", ""},
    {"DDRUN_LISTEN_PORT", "--port"},
}};

/// Variables of ddrun's options for the job's machines and rendezvous. Not inherited: a ddrun started by a worker would
/// join this job. docs/environment.md has the same list.
constexpr std::array<std::string_view, 12> job_location_variables{
    "DDRUN_HOSTFILE",    "DDRUN_HOSTS",         "DDRUN_LOCAL_ADDR", "DDRUN_MASTER_ADDR",
    "DDRUN_MASTER_PORT", "DDRUN_NNODES",        "DDRUN_NODE_RANK",  "DDRUN_RDZV_BACKEND",
    "DDRUN_RDZV_CONF",   "DDRUN_RDZV_ENDPOINT", "DDRUN_RDZV_ID",    "DDRUN_RDZV_LEASE"};

/// Not inherited either: they concern one ddrun, and secrets are for agents only.
constexpr std::array<std::string_view, 9> agent_variables{
    "DDRUN_SECRET", "DDRUN_ETCD_USER", "ETCDCTL_USER", "ETCDCTL_PASSWORD",     "DDRUN_STARTED_BY_SRUN",
    "DDRUN_BEFORE", "DDRUN_AFTER",     "DDRUN_CI",     "DDRUN_END_WITH_PARENT"};

/// Set with --mpi. docs/environment.md has the same list.
constexpr std::array<std::string_view, 6> pmi_variables{"PMI_PORT", "PMI_ID",          "PMI_RANK",
                                                        "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr std::array<std::string_view, 6> pmix_variables{"OMPI_COMM_WORLD_RANK",       "OMPI_COMM_WORLD_SIZE",
                                                         "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                         "OMPI_COMM_WORLD_NODE_RANK",  "JSM_JSRUN_PORT"};
/// Of MPI launchers; with --mpi not inherited either.
bool misleads_mpi(std::string_view name) {
  return name.starts_with("PMI2_") || name.starts_with("JSM_") || name == "FLUX_PMI_LIBRARY_PATH" ||
         name == "OMPI_UNIVERSE_SIZE" || (name.starts_with("OMPI_MCA_btl_") && name.ends_with("_backing_directory"));
}

constexpr std::string_view cuda_devices = "CUDA_VISIBLE_DEVICES";
constexpr std::string_view hip_devices = "HIP_VISIBLE_DEVICES";

/// Of a worker's place, in arguments; the last one also in --env.
constexpr std::string_view rank_placeholder = "${rank}";
constexpr std::string_view local_rank_placeholder = "${local_rank}";
constexpr std::string_view port_placeholder = "${port}";

struct Place {
  std::string_view placeholder;
  int number;
};

std::string substitute(std::string_view text, const std::vector<Place>& places) {
  std::string result;
  while (true) {
    const std::size_t at = text.find("${");
    if (at == std::string_view::npos) return result.append(text);
    result.append(text.substr(0, at));
    text.remove_prefix(at);
    const auto found =
        std::ranges::find_if(places, [&](const Place& place) { return text.starts_with(place.placeholder); });
    result += found == places.end() ? "${" : std::to_string(found->number);
    text.remove_prefix(found == places.end() ? 2 : found->placeholder.size());
  }
}

const OwnVariable* own_variable(std::string_view name) {
  const auto* found = std::ranges::find(own_variables, name, &OwnVariable::name);
  return found == own_variables.end() ? nullptr : found;
}

Result<void> check_env_options(const ProgramSpec& program, const WorkerFacts& facts) {
  for (const auto& [name, value] : program.env) {
    if (name.empty() || name.find('=') != std::string::npos) {
      return fail(Errc::invalid_argument, concat("--env ", name, "=", value, ": give it as NAME=VALUE"));
    }
    if ((facts.pmi && std::ranges::find(pmi_variables, name) != pmi_variables.end()) ||
        (facts.pmix && std::ranges::find(pmix_variables, name) != pmix_variables.end())) {
      return fail(Errc::invalid_argument, concat("--env ", name, ": ddrun sets ", name, " itself with --mpi"));
    }
    if (const auto given = check_variable(name, program.has_world()); !given) {
      return fail(Errc::invalid_argument, concat("--env ", name, ": ", given.error().message));
    }
  }
  return {};
}

/// The value of a variable without ddrun's own ones: of the last --env with that name, else inherited.
std::optional<std::string_view> value_without_ddrun(const ProgramSpec& program, const Environment& parent,
                                                    std::string_view name) {
  for (auto it = program.env.rbegin(); it != program.env.rend(); ++it) {
    if (it->first == name) return it->second;
  }
  return parent.find(name);
}

/// In torchrun's order first, so that the default equals torchrun's text.
std::string signals_to_handle(const std::set<int>& signals) {
  std::vector<std::string> names;
  const std::array<int, 4> first{SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  for (const int signal : first) {
    if (signals.contains(signal)) names.push_back(signal_name(signal));
  }
  for (const int signal : signals) {
    if (std::find(first.begin(), first.end(), signal) == first.end()) names.push_back(signal_name(signal));
  }
  return join(names, ",");
}

/// A script, a module, or an interpreter as program: "python3", "/opt/venv/bin/python3.12".
bool runs_python(const ProgramSpec& program) {
  if (program.kind != ProgramKind::executable) return true;
  return std::string_view(program.name).substr(program.name.rfind('/') + 1).starts_with("python");
}

/// ddrun's variables that are the same for all workers.
std::vector<std::pair<std::string, std::string>> common_variables(const LaunchSpec& spec, const ProgramSpec& program,
                                                                  const RankAssignment& ranks,
                                                                  const Environment& parent, const WorkerFacts& facts) {
  std::vector<std::pair<std::string, std::string>> common = {
      {"DDRUN_VERSION", facts.version},
      {"DDRUN_ROUND", std::to_string(ranks.round)},
  };
  const auto unset = [&](std::string_view name) { return !value_without_ddrun(program, parent, name).has_value(); };
  if (program.has_world()) {
    common.insert(common.begin(),
                  {{"WORLD_SIZE", std::to_string(ranks.world_size)},
                   {"LOCAL_WORLD_SIZE", std::to_string(ranks.local_world_size)},
                   {"GROUP_RANK", std::to_string(ranks.node_rank)},
                   {"GROUP_WORLD_SIZE", std::to_string(ranks.node_count)},
                   {"ROLE_NAME", program.role},
                   {"ROLE_WORLD_SIZE", std::to_string(ranks.role_world_size)},
                   {"MASTER_ADDR", ranks.master_addr},
                   {"MASTER_PORT", std::to_string(ranks.master_port)},
                   {"TORCHELASTIC_RESTART_COUNT", std::to_string(ranks.restart_count)},
                   {"TORCHELASTIC_MAX_RESTARTS", std::to_string(ranks.max_restarts)},
                   {"TORCHELASTIC_RUN_ID", ranks.run_id},
                   {"TORCHELASTIC_USE_AGENT_STORE", uses_agent_store(spec, program, parent) ? "True" : "False"},
                   {"TORCHELASTIC_SIGNALS_TO_HANDLE", signals_to_handle(spec.stop.ending_signals)}});
    if (unset("TORCH_NCCL_ASYNC_ERROR_HANDLING")) common.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    if (unset("OMP_NUM_THREADS") && ranks.local_world_size > 1) common.emplace_back("OMP_NUM_THREADS", "1");
    if (!facts.timer_file.empty()) common.emplace_back("TORCHELASTIC_TIMER_FILE", facts.timer_file);
  }
  if (runs_python(program) && unset("PYTHONFAULTHANDLER")) common.emplace_back("PYTHONFAULTHANDLER", "1");
  // Python would buffer up to 8 KiB for a pipe, and lose it when the worker is killed.
  if (unset("PYTHONUNBUFFERED")) common.emplace_back("PYTHONUNBUFFERED", "1");
  common.insert(common.end(), facts.addresses.begin(), facts.addresses.end());
  for (const auto& [name, value] : facts.network) {
    if (unset(name)) common.emplace_back(name, value);
  }
  if (facts.pmi) {
    common.insert(common.end(), {{"PMI_PORT", facts.pmi->port},
                                 {"PMI_SIZE", std::to_string(ranks.world_size)},
                                 {"MPI_LOCALNRANKS", std::to_string(ranks.local_world_size)}});
    // MPICH 5 refuses to choose where it finds variables of PMIx too.
    if (unset("MPIR_CVAR_PMI_VERSION")) common.emplace_back("MPIR_CVAR_PMI_VERSION", "1");
  }
  if (facts.pmix) {
    // Without the last one Open MPI 4.1 takes each rank for a world of its own.
    common.insert(common.end(), {{"OMPI_COMM_WORLD_SIZE", std::to_string(ranks.world_size)},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(ranks.local_world_size)},
                                 {"JSM_JSRUN_PORT", "ddrun"}});
    for (const char* const name : {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"}) {
      if (std::ranges::find(program.env, name, [](const auto& e) { return e.first; }) == program.env.end())
        common.emplace_back(name, facts.pmix->directory);
    }
    if (facts.pmix->oversubscribed && unset("OMPI_MCA_mpi_oversubscribe"))
      common.emplace_back("OMPI_MCA_mpi_oversubscribe", "1");
  }
  if (!facts.attempt_dir.empty()) common.emplace_back("DDRUN_ATTEMPT_DIR", facts.attempt_dir);
  if (!facts.job_tag.empty()) common.emplace_back("DDRUN_JOB_TAG", facts.job_tag);
  return common;
}

/// By local rank, with --virtual-local-rank: one of a list, or with --gpus a share of it for each of this program's.
Result<std::vector<std::string>> share_devices(const ProgramSpec& program, const RankAssignment& ranks,
                                               std::string_view name, std::string_view list) {
  std::vector<std::string> devices;
  for (const std::string& device : split(list, ',')) devices.emplace_back(trim(device));
  if (program.gpus_per_worker > 0) {
    std::vector<std::string> shares(static_cast<std::size_t>(ranks.role_first_local_rank));
    const auto share = static_cast<std::ptrdiff_t>(program.gpus_per_worker);
    for (auto it = devices.begin(); it != devices.end(); it += share) shares.push_back(join({it, it + share}, ","));
    return shares;
  }
  const auto count = static_cast<int>(devices.size());
  if (count >= ranks.local_world_size) return devices;
  return fail(Errc::invalid_argument,
              concat(name, "=", list, " names ", counted(count, "device"), ", too few for ", ranks.local_world_size,
                     " workers with --virtual-local-rank, where each gets one; give a longer list or a smaller "
                     "--nproc-per-node"));
}

/// Variables that are set otherwise, or of another job (if a worker of another ddrun started this one).
std::vector<std::string_view> not_inherited(const ProgramSpec& program) {
  std::vector<std::string_view> names = {"RANK",       "LOCAL_RANK",        "ROLE_RANK",    "TORCHELASTIC_ERROR_FILE",
                                         "DDRUN_SEED", "DDRUN_ATTEMPT_DIR", "DDRUN_JOB_TAG"};
  names.insert(names.end(), agent_variables.begin(), agent_variables.end());
  names.insert(names.end(), job_location_variables.begin(), job_location_variables.end());
  if (program.port != 0) names.emplace_back("DDRUN_LISTEN_PORT");
  if (program.virtual_local_rank) names.emplace_back(cuda_devices);
  for (const auto& entry : program.env) names.emplace_back(entry.first);
  if (program.has_world()) return names;
  for (const OwnVariable& one : own_variables) names.push_back(one.name);
  return names;
}

/// Entries that differ between workers.
std::size_t count_own(const LaunchSpec& spec, const ProgramSpec& program, const WorkerFacts& facts, bool hip) {
  const unsigned devices = (program.virtual_local_rank ? 1U : 0U) + (hip ? 1U : 0U);
  const std::size_t pmix = facts.pmix ? 3U + facts.pmix->variables.front().size() : 0U;
  return (program.has_world() ? 4U : 0U) + devices + (spec.seed ? 1U : 0U) + (facts.pmi ? 3U : 0U) + pmix;
}

void assign(std::string& entry, std::string_view name, long long number) {
  std::array<char, 24> digits;  // NOLINT: written by to_chars
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  entry.assign(name).append(digits.data(), end);
}

}  // namespace

std::uint64_t worker_seed(std::uint64_t n, int rank) {
  std::uint64_t z = n + (static_cast<std::uint64_t>(rank) + 1) * 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

Result<void> check_variable(const std::string& name, bool has_world) {
  if (!has_world && !name.starts_with("DDRUN_")) return {};
  if (name == "DDRUN_SECRET") {
    return fail(Errc::invalid_argument,
                "workers do not get it; use --secret-file, or set the variable for ddrun itself");
  }
  const OwnVariable* own = own_variable(name);
  const bool is_address = name.starts_with("DDRUN_HOSTS_") || name.starts_with("DDRUN_ENDPOINTS_");
  if (is_address) return fail(Errc::invalid_argument, concat("ddrun sets ", name, " itself"));
  if (own == nullptr) return {};
  return fail(Errc::invalid_argument,
              concat("ddrun sets ", name, " itself", own->instead.empty() ? "" : concat("; use ", own->instead)));
}

bool uses_agent_store(const LaunchSpec& spec, const ProgramSpec& program, const Environment& parent) {
  const RendezvousSpec& rendezvous = spec.rendezvous;
  // torchrun turns a static rendezvous without an endpoint into a standalone c10d one.
  const bool really_static = rendezvous.backend == "static" && !rendezvous.standalone &&
                             (!rendezvous.endpoint.empty() || rendezvous.master_port || rendezvous.max_nodes > 1);
  return really_static || value_without_ddrun(program, parent, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1";
}

Result<WorkerEnvironment> WorkerEnvironment::prepare(const LaunchSpec& spec, const ProgramSpec& program,
                                                     const RankAssignment& ranks, const Environment& parent,
                                                     const WorkerFacts& facts) {
  TRY(check_env_options(program, facts));
  WorkerEnvironment result;
  result.ranks_ = ranks;
  result.has_world_ = program.has_world();
  result.virtual_local_rank_ = program.virtual_local_rank;
  result.seed_ = spec.seed;
  result.seed_offset_ = facts.seed_offset;
  result.first_port_ = program.port;
  if (program.port != 0) result.with_port_ = {concat("DDRUN_LISTEN_PORT=", port_placeholder)};
  result.error_file_ = facts.error_file;
  result.pmi_id_ = facts.pmi ? facts.pmi->id : nullptr;
  if (facts.pmix) result.pmix_variables_ = facts.pmix->variables;
  if (program.virtual_local_rank) {
    // HIP reads its own variable first, so a worker with one device needs both.
    const auto hip = value_without_ddrun(program, parent, hip_devices);
    result.hip_ = hip && !hip->empty();
    const std::string_view source = result.hip_ ? hip_devices : cuda_devices;
    if (const auto visible = value_without_ddrun(program, parent, source)) {
      result.devices_ = TRY(share_devices(program, ranks, source, *visible));
    }
  }

  const auto common = common_variables(spec, program, ranks, parent, facts);
  std::vector<std::string_view> replaced = not_inherited(program);
  if (result.hip_) replaced.emplace_back(hip_devices);
  for (const auto& entry : common) replaced.emplace_back(entry.first);
  std::sort(replaced.begin(), replaced.end());

  for (const char* entry : parent.entries()) {
    const std::string_view name = entry_name(entry);
    if (!name.empty() && std::binary_search(replaced.begin(), replaced.end(), name)) continue;
    if (!result.has_world_ && name.starts_with("TORCHELASTIC_")) continue;
    const bool keeps_ranks = spec.keep_scheduler_env && result.has_world_;
    if ((!keeps_ranks && is_scheduler_rank(name)) || ((facts.pmi || facts.pmix) && misleads_mpi(name))) continue;
    // execve() takes char* but does not modify the strings.
    result.pointers_.push_back(const_cast<char*>(entry));
  }
  const auto add = [&](std::string_view name, std::string_view value) {
    const std::string entry = concat(name, "=", value);
    auto& copy = result.common_.emplace_back(new char[entry.size() + 1]);
    std::memcpy(copy.get(), entry.c_str(), entry.size() + 1);
    result.pointers_.push_back(copy.get());
  };
  for (auto it = program.env.begin(); it != program.env.end(); ++it) {
    const bool again =
        std::any_of(std::next(it), program.env.end(), [&](const auto& e) { return e.first == it->first; });
    const bool chosen =
        (program.virtual_local_rank && it->first == cuda_devices) || (result.hip_ && it->first == hip_devices);
    if (again || chosen) continue;  // the last one counts
    const bool has_port = program.port != 0 && it->second.find(port_placeholder) != std::string::npos;
    if (has_port) result.with_port_.push_back(concat(it->first, "=", it->second));
    else add(it->first, it->second);
  }
  for (const auto& [name, value] : common) add(name, value);
  result.first_own_ = result.pointers_.size();
  result.own_count_ = count_own(spec, program, facts, result.hip_) + result.with_port_.size();
  result.pointers_.resize(result.first_own_ + result.own_count_ + 1, nullptr);
  return result;
}

char* const* WorkerEnvironment::block(int local_rank) { return block(local_rank, block_); }

char* const* WorkerEnvironment::block(int local_rank, Block& block) const {
  if (block.pointers.empty()) {
    block.pointers = pointers_;
    block.own.resize(own_count_);
  }
  auto& own = block.own;
  const int rank = ranks_.rank_of(local_rank);
  const int number = local_rank - ranks_.role_first_local_rank;  // among the program's workers
  std::size_t next = 0;
  if (has_world_) {
    assign(own[next++], "RANK=", rank);
    assign(own[next++], "LOCAL_RANK=", virtual_local_rank_ ? 0 : local_rank);
    assign(own[next++], "ROLE_RANK=", ranks_.role_rank_of(local_rank));
    own[next].assign("TORCHELASTIC_ERROR_FILE=");
    if (error_file_) own[next].append(error_file_(local_rank));
    ++next;
  }
  if (virtual_local_rank_) {
    const std::string device =
        devices_.empty() ? std::to_string(local_rank) : devices_[static_cast<std::size_t>(local_rank)];
    own[next++] = concat(cuda_devices, "=", device);
    if (hip_) own[next++] = concat(hip_devices, "=", device);
  }
  if (seed_) own[next++].assign("DDRUN_SEED=").append(std::to_string(worker_seed(*seed_, rank + seed_offset_)));
  if (pmi_id_) {
    own[next++].assign("PMI_ID=").append(pmi_id_(local_rank));
    assign(own[next++], "PMI_RANK=", rank);
    assign(own[next++], "MPI_LOCALRANKID=", local_rank);
  }
  if (!pmix_variables_.empty()) {
    assign(own[next++], "OMPI_COMM_WORLD_RANK=", rank);
    for (const char* const name : {"OMPI_COMM_WORLD_LOCAL_RANK=", "OMPI_COMM_WORLD_NODE_RANK="})
      assign(own[next++], name, local_rank);
    for (const std::string& variable : pmix_variables_[static_cast<std::size_t>(local_rank)]) own[next++] = variable;
  }
  for (const std::string& entry : with_port_)
    own[next++] = substitute(entry, {{port_placeholder, first_port_ + number}});
  for (std::size_t i = 0; i < own.size(); ++i) block.pointers[first_own_ + i] = own[i].data();
  return block.pointers.data();
}

std::vector<std::string> WorkerEnvironment::list(int local_rank) {
  std::vector<std::string> entries;
  for (char* const* entry = block(local_rank); *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return entries;
}

Result<std::vector<std::string>> worker_environment(const LaunchSpec& spec, const ProgramSpec& program,
                                                    const RankAssignment& ranks, int local_rank,
                                                    const Environment& parent, const WorkerFacts& facts) {
  return WorkerEnvironment::prepare(spec, program, ranks, parent, facts).map([&](WorkerEnvironment environment) {
    return environment.list(local_rank);
  });
}

// ---- argv

namespace {

/// torchrun's --run-path in Python without PyTorch: an exception is written to the error file as by @record, and a
/// finished worker waits for the others of its machine, so that it does not tear down what they still use: a barrier of
/// the agent's store (docs/store.md).
constexpr std::string_view run_path =
    R"(import faulthandler, json, os, pkgutil, runpy, socket, struct, sys, time, traceback

def record(error):
    if not environment.get("TORCHELASTIC_ERROR_FILE"):
        return
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    with open(environment["TORCHELASTIC_ERROR_FILE"], "w") as file:
        json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}, file)

def wait_for_all():
    workers = int(environment["LOCAL_WORLD_SIZE"])
    if workers == 1 or environment["TORCHELASTIC_USE_AGENT_STORE"] != "True":
        return
    key = b"ddrun/returned/" + environment["GROUP_RANK"].encode()
    barrier = b"\x12" + struct.pack("<Q", len(key)) + key + struct.pack("<q", workers)
    try:
        with socket.create_connection((environment["MASTER_ADDR"], int(environment["MASTER_PORT"])), 60) as store:
            store.settimeout(None)
            store.sendall(b"\x00\xce\xf7\x85\x3c" + barrier)
            store.recv(1)
    except OSError:
        pass

environment = dict(os.environ)
del sys.argv[0]
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]
    if pkgutil.get_importer(sys.argv[0]) is None:
        sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[0])))
try:
    faulthandler.enable(all_threads=True)
except Exception:
    pass
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as end:
    if end.code not in (None, 0):
        raise
except Exception as error:
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in ("<string>", "<frozen runpy>", runpy.__file__):
        trace = trace.tb_next
    error.__traceback__ = trace
    record(error)
    sys.excepthook(type(error), error, trace)
    sys.exit(1)
wait_for_all()
)";

}  // namespace

std::vector<std::string> worker_argv(const ProgramSpec& program, int rank, int local_rank, const std::string& python,
                                     int port) {
  std::vector<Place> places{{rank_placeholder, rank}, {local_rank_placeholder, local_rank}};
  if (port != 0) places.push_back({port_placeholder, port});
  std::vector<std::string> argv;
  argv.reserve(program.args.size() + 5);
  if (program.kind != ProgramKind::executable) {
    argv.push_back(python);
    argv.emplace_back("-u");
  }
  if (program.kind == ProgramKind::python_module) argv.emplace_back("-m");
  if (program.kind == ProgramKind::python_function) argv.insert(argv.end(), {"-c", std::string(run_path)});
  argv.push_back(program.name);
  for (const std::string& arg : program.args) argv.push_back(substitute(arg, places));
  return argv;
}

bool argv_depends_on_rank(const ProgramSpec& program) {
  return std::any_of(program.args.begin(), program.args.end(), [&](const std::string& arg) {
    return arg.find(rank_placeholder) != std::string::npos || arg.find(local_rank_placeholder) != std::string::npos ||
           (program.port != 0 && arg.find(port_placeholder) != std::string::npos);
  });
}

}  // namespace ddrun::worker_env
