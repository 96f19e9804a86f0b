#include "preparation.hpp"

#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>

#include "ddrun/agent/events_file.hpp"
#include "ddrun/agent/report.hpp"
#include "ddrun/base/address.hpp"
#include "ddrun/base/duration.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/base/unique_fd.hpp"
#include "ddrun/topology/nproc.hpp"
#include "ddrun/worker_env/addresses.hpp"
#include "ddrun/worker_env/program_path.hpp"

namespace ddrun::agent {

namespace {

std::string full_host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

/// The workers' directory, absolute; paths on the command line are relative to it, as with `env --chdir`.
Result<std::string> working_directory(const ProgramSpec& program) {
  char current[4096] = "";
  const bool needed = !program.chdir || !program.chdir->starts_with('/');
  if (::getcwd(current, sizeof current) == nullptr && needed) {
    return fail_errno(Errc::unavailable, "the current directory cannot be read (was it removed?)", errno);
  }
  if (!program.chdir) return std::string(current);
  const std::string wanted = program.chdir->starts_with('/') ? *program.chdir : concat(current, "/", *program.chdir);
  struct stat info {};
  if (::stat(wanted.c_str(), &info) != 0) {
    return fail_errno(Errc::invalid_argument, concat("--chdir=", *program.chdir), errno);
  }
  if (!S_ISDIR(info.st_mode)) {
    return fail(Errc::invalid_argument, concat("--chdir=", *program.chdir, ": not a directory"));
  }
  if (::access(wanted.c_str(), X_OK) != 0) {
    return fail_errno(Errc::invalid_argument, concat("--chdir=", *program.chdir), errno);
  }
  char* real = ::realpath(wanted.c_str(), nullptr);
  std::string path = real != nullptr ? real : wanted;
  ::free(real);
  return path;
}

/// The variables for finding the program, with --env applied, as with env(1).
class SearchEnvironment {
 public:
  SearchEnvironment(const ProgramSpec& program, const Environment& parent) {
    for (const auto& [name, value] : program.env) {
      if (name == "PATH" || name == "VIRTUAL_ENV" || name == "PYTHON_EXEC")
        overrides_.push_back(concat(name, "=", value));
    }
    // The first entry of a name counts; of two --env the last.
    std::vector<const char*> entries;
    for (auto it = overrides_.rbegin(); it != overrides_.rend(); ++it) entries.push_back(it->c_str());
    entries.insert(entries.end(), parent.entries().begin(), parent.entries().end());
    entries.push_back(nullptr);
    environment_ = Environment(entries.data());
  }
  [[nodiscard]] const Environment& environment() const { return environment_; }

 private:
  std::vector<std::string> overrides_;
  Environment environment_;
};

Result<void> resolve_program(const LaunchSpec& spec, const Environment& parent, PreparedProgram& prepared) {
  ProgramSpec& command = prepared.command;
  const SearchEnvironment search(command, parent);
  const std::string path(search.environment().find("PATH").value_or(worker_env::default_path));
  if (command.kind == ProgramKind::executable) {
    auto found = worker_env::find_program(command.name, path, prepared.directory);
    if (found) {
      // $0 of a script is the executed path: keep what the user wrote, as a shell does.
      prepared.program = command.name.find('/') == std::string::npos ? *found : command.name;
      return {};
    }
    if (command.no_python || !worker_env::is_python_program(command.name, prepared.directory)) {
      return tl::unexpected(found.error());
    }
    command.kind = ProgramKind::python_script;
  }
  auto python = TRY(worker_env::choose_python(search.environment(), prepared.directory, spec.started_as));
  prepared.python = python.path;
  prepared.python_reason = python.why;
  prepared.program = prepared.python;
  if (command.kind != ProgramKind::python_module) TRY(worker_env::find_script(command.name, prepared.directory));
  return {};
}

/// With --dry-run a program may be missing: it may exist by the time of the job.
Result<void> resolve_or_assume_program(const LaunchSpec& spec, const Environment& parent, PreparedProgram& prepared) {
  auto found = resolve_program(spec, parent, prepared);
  if (found || !spec.dry_run) return found;
  say(Level::warning, found.error().message);
  const bool by_python = prepared.command.kind != ProgramKind::executable;
  if (prepared.program.empty()) prepared.program = by_python ? "python3" : prepared.command.name;
  if (by_python) prepared.python = prepared.program;
  return {};
}

/// NCCL and data loaders use /dev/shm, of which a container has 64 MiB by default.
void note_small_shm(const LaunchSpec& spec, int workers) {
  constexpr std::uint64_t enough = 1ULL << 30U;
  if (workers < 2 || spec.rendezvous.node_rank.value_or(0) != 0) return;
  const auto shm = shm_space();
  if (!shm || shm->size >= enough) return;
  if (topology::count_gpus(topology::GpuVariables::from_environment()) == 0) return;
  say(Level::notice, concat("/dev/shm has ", format_size(shm->size),
                            "; NCCL and DataLoader workers need more: docker run --shm-size=8g, or --ipc=host"));
}

/// The Python file that the workers run, also as `python train.py` and `-m mpi4py train.py`; else the program's path.
std::string script_of(const PreparedProgram& prepared) {
  const auto& [kind, name, args] = std::tie(prepared.command.kind, prepared.command.name, prepared.command.args);
  const bool by_name = kind == ProgramKind::executable ? name.find("python", name.rfind('/') + 1) != std::string::npos
                                                       : kind == ProgramKind::python_module && name == "mpi4py";
  const auto script = std::find_if(args.begin(), args.end(), [](const auto& word) { return word.ends_with(".py"); });
  if (by_name && script != args.end()) return *script;
  if (kind == ProgramKind::python_module) return concat(join(split(name, '.'), "/"), ".py");
  return kind == ProgramKind::executable ? prepared.program : name;
}

/// The program's Open MPI, and OpenPMIx's library: --mpi-lib, or where that has it.
Result<worker_env::MpiLibraries> find_open_mpi(const LaunchSpec& spec, const Environment& parent,
                                               const PreparedProgram& prepared, const std::string& program) {
  std::vector<std::string> given;
  for (const auto& [name, value] : prepared.command.env) given.push_back(concat(name, "=", value));
  std::vector<const char*> entries;
  for (const std::string& entry : given) entries.push_back(entry.c_str());
  for (const char* entry : parent.entries()) entries.push_back(entry);
  entries.push_back(nullptr);
  const bool is_python = !prepared.python.empty() || script_of(prepared) != prepared.program;
  const std::string prefix = is_python ? std::filesystem::path(program).parent_path().parent_path() : "";
  auto found = worker_env::find_libpmix(program, Environment(entries.data()), prefix);
  if (!spec.mpi_lib) return found;
  found.pmix = std::filesystem::absolute(*spec.mpi_lib);
  if (::access(found.pmix.c_str(), R_OK) == 0) return found;
  return fail_errno(Errc::invalid_argument, concat("--mpi-lib=", *spec.mpi_lib), errno);
}

/// What is served to an MPI program of a job with several workers or one. Without an MPI launcher each worker of such a
/// program is rank 0 of 1: a wrong result without an error.
Result<MpiServing> choose_mpi(const LaunchSpec& spec, const Environment& parent, const PreparedProgram& prepared,
                              bool several) {
  const Mpi mpi = prepared.command.mpi;
  const bool asked = mpi != Mpi::automatic && mpi != Mpi::none;
  if (asked && spec.keep_scheduler_env) {
    return fail(Errc::invalid_argument,
                "--mpi and --keep-scheduler-env, whose ranks are another launcher's, cannot both be given");
  }
  if (mpi == Mpi::none || (!asked && !several)) return MpiServing{};
  if (spec.keep_scheduler_env && (parent.find("PMI_RANK") || parent.find("PMIX_RANK"))) return MpiServing{};
  const std::string program =
      prepared.program.starts_with('/') ? prepared.program : concat(prepared.directory, "/", prepared.program);
  const std::string library = worker_env::linked_mpi(program);
  // MPICH's and Intel's libraries end in .12, Open MPI's in .40.
  const bool is_mpich = library.ends_with(".12"), is_open_mpi = library.ends_with(".40");
  const bool is_chosen = !asked && !spec.keep_scheduler_env;
  MpiServing serving;
  serving.pmi = mpi == Mpi::pmi || (mpi == Mpi::both && !is_open_mpi) || (is_chosen && is_mpich);
  if (mpi == Mpi::pmix || (mpi == Mpi::both && !is_mpich) || (is_chosen && is_open_mpi)) {
    auto found = TRY(find_open_mpi(spec, parent, prepared, program));
    const bool is_too_old = worker_env::is_before_4_1(found.mpi);
    if (found.pmix.empty() && (mpi == Mpi::pmix || (is_open_mpi && !is_too_old))) {
      return fail(Errc::unavailable,
                  "Open MPI finds its world by libpmix.so.2, and this machine has none: install the package libpmix2 "
                  "(libpmix2t64, pmix), or give --mpi-lib=FILE; with --mpi=none each worker is a separate world");
    }
    if (asked || !is_too_old) serving.libpmix = found.pmix;
  }
  if (serving.is_on() || spec.rendezvous.node_rank.value_or(0) != 0) return serving;
  const std::string script = script_of(prepared);
  if (!library.empty()) {
    say(Level::warning,
        concat(prepared.command.name, " is an MPI program (it needs ", library,
               "), and ddrun does not serve MPI: each worker will be rank 0 of 1; start it with mpirun or srun"));
  } else if (worker_env::imports_mpi4py(script, prepared.directory)) {
    say(Level::warning, concat(script, " imports mpi4py, and MPI is off: each worker will be rank 0 of 1; give --mpi"));
  }
  return serving;
}

/// --interface
Result<void> check_interface(const std::string& name) {
  if (::if_nametoindex(name.c_str()) != 0) return {};
  std::vector<std::string> names;
  if (struct if_nameindex* const all = ::if_nameindex()) {
    for (const auto* one = all; one->if_name != nullptr; ++one) names.emplace_back(one->if_name);
    ::if_freenameindex(all);
  }
  return fail(Errc::invalid_argument,
              concat("--interface=", name, ": this machine has no such interface; it has ", join(names, ", ")));
}

/// With a line "10.0.0.7 name alias" Gloo finds an address of this machine that other machines can reach.
bool is_in_hosts_file(const std::string& name) {
  for (const std::string& line : split(read_small_file("/etc/hosts").value_or(""), '\n')) {
    std::string text = line.substr(0, line.find('#'));
    std::replace(text.begin(), text.end(), '\t', ' ');
    std::vector<std::string> fields = split(trim(text), ' ');
    const auto address = IpAddress::parse(fields.front());
    if (std::find(fields.begin() + 1, fields.end(), name) != fields.end() && address && !address->is_loopback() &&
        !interface_of(*address).empty()) {
      return true;
    }
  }
  return false;
}

/// From the routing table; connect(2) of a UDP socket sends no packet.
std::optional<IpAddress> source_address_to(const SocketAddress& peer) {
  const UniqueFd fd(::socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd || ::connect(fd.get(), peer.get(), peer.size) != 0) return std::nullopt;
  const auto local = local_socket_address(fd.get());
  return local ? IpAddress::of(local->storage) : std::nullopt;
}

Result<void> prepare_program(const LaunchSpec& spec, const ProgramSpec& program, Preparation& all) {
  PreparedProgram& prepared = all.programs.emplace_back();
  prepared.command = program;
  prepared.directory = TRY(working_directory(program));
  TRY(resolve_or_assume_program(spec, all.parent, prepared));
  if (program.preload.empty() || prepared.command.kind != ProgramKind::executable) return {};
  return fail(Errc::invalid_argument,
              concat("--preload=", join(program.preload, ","), ": ", program.name, " is not a Python program"));
}

/// Adds what is served to one of the programs. One world of MPI is served.
Result<void> serve_mpi(const PreparedProgram& program, MpiServing serving, Preparation& all) {
  MpiServing& served = all.mpi;
  const bool is_second = served.is_on() && serving.is_on();
  if (is_second && all.mpi_world != program.world) {
    return fail(Errc::invalid_argument,
                concat("two worlds of MPI in one job: that of ", program.command.role,
                       " and another; give one --world=NAME to all MPI programs, or --mpi=none"));
  }
  const bool have_one_in_common = (served.pmi && serving.pmi) || (!served.libpmix.empty() && !serving.libpmix.empty());
  if (is_second && !have_one_in_common) {
    return fail(Errc::invalid_argument, concat("the world of ", program.command.role,
                                               " would have programs of MPICH and of Open MPI, which "
                                               "cannot meet; give each --world=NAME and all but one --mpi=none"));
  }
  if (serving.is_on()) all.mpi_world = *program.world;
  served.pmi = served.pmi || serving.pmi;
  if (served.libpmix.empty()) served.libpmix = std::move(serving.libpmix);
  return {};
}

/// --gpus, as variables. A share for each worker of a service, and with --virtual-local-rank.
Result<void> set_devices(const topology::VisibleDevices& visible, const std::vector<std::string>& devices,
                         ProgramSpec& command) {
  const std::string list = join(devices, ",");
  for (const auto& [name, value] : command.env) {
    if (name != "CUDA_VISIBLE_DEVICES" && name != "HIP_VISIBLE_DEVICES") continue;
    return fail(Errc::invalid_argument, concat("--gpus and --env ", name, " both choose devices; leave one out"));
  }
  command.env.emplace_back("CUDA_VISIBLE_DEVICES", list);
  // HIP takes an empty list for none given.
  if (visible.by_hip) command.env.emplace_back("HIP_VISIBLE_DEVICES", list.empty() ? "-1" : list);
  const auto count = static_cast<int>(devices.size());
  if (command.nproc.kind == NprocSpec::Kind::automatic)
    command.nproc.kind = count > 0 ? NprocSpec::Kind::gpu : NprocSpec::Kind::cpu;
  const auto workers = TRY(command.nproc.kind == NprocSpec::Kind::gpu
                               ? topology::resolve_nproc(command.nproc, {}, {count, "", "--gpus=" + command.gpus})
                               : topology::resolve_nproc(command.nproc));
  command.nproc = {NprocSpec::Kind::count, workers};
  const bool is_shared = command.virtual_local_rank || (command.is_service && count > 0);
  command.virtual_local_rank = is_shared;
  command.gpus_per_worker = is_shared ? count / workers : 0;
  if (!is_shared || (count > 0 && count % workers == 0)) return {};
  return fail(Errc::invalid_argument,
              concat("--gpus=", command.gpus, ": ", counted(count, "device"), " cannot be divided among ",
                     counted(workers, "worker"), ", which get a share each; give a multiple"));
}

Result<void> choose_gpus(Preparation& prepared) {
  std::vector<topology::GpuRequest> requests;
  const bool is_only = prepared.programs.size() == 1;
  for (const PreparedProgram& one : prepared.programs)
    requests.push_back({one.command.gpus, is_only ? "" : one.command.role});
  if (std::ranges::all_of(requests, [](const auto& one) { return one.text.empty(); })) return {};
  const topology::VisibleDevices visible = topology::visible_devices(prepared.parent);
  auto shares = TRY(topology::divide_gpus(requests, visible.names));
  std::vector<std::string> sharing, unlimited;  // roles
  for (std::size_t i = 0; i < shares.size(); ++i) {
    ProgramSpec& command = prepared.programs[i].command;
    const auto& devices = shares[i];
    if (devices && !devices->empty()) sharing.push_back(command.role);
    if (!devices && !command.is_service) unlimited.push_back(command.role);
    if (!devices) continue;
    TRY(set_devices(visible, *devices, command));
  }
  if (unlimited.empty() || sharing.empty()) return {};
  say(Level::warning, concat(join(unlimited, ", "), unlimited.size() == 1 ? " sees all " : " see all ",
                             counted(static_cast<long long>(visible.names.size()), "device"), ", also those of ",
                             join(sharing, ", "), "; give --gpus=N too, or --gpus=0"));
  return {};
}

/// Where the workers of the programs listen (--port), for the others.
Result<void> exchange_addresses(Preparation& prepared) {
  const bool is_only = prepared.programs.size() == 1;
  if (is_only && prepared.first().command.port == 0) return {};
  std::map<int, std::string> taken;
  std::vector<worker_env::ProgramAddresses> all;
  for (const PreparedProgram& program : prepared.programs) {
    auto& [role, hosts, endpoints] = all.emplace_back();
    role = program.command.role;
    for (int i = 0; i < program.workers; ++i) {
      hosts.emplace_back("127.0.0.1");
      if (program.command.port == 0) continue;
      const int port = program.command.port_of(i);
      const auto [other, is_free] = taken.emplace(port, role);
      endpoints.push_back(concat(hosts.back(), ":", port));
      if (is_free && port <= 65535) continue;
      return fail(Errc::invalid_argument,
                  concat("--port=", program.command.port, ": each of ", counted(program.workers, "worker"),
                         " has a port, and ", port, " is ", is_free ? "no port" : "that of " + other->second));
    }
  }
  if (is_only) return {};
  prepared.addresses = worker_env::address_variables(all);
  for (PreparedProgram& program : prepared.programs) TRY(worker_env::expand_addresses(program.command, all));
  return {};
}

/// Counts the workers, and puts each program into its world and each worker into its place.
Result<void> place_workers(const LaunchSpec& spec, Preparation& prepared) {
  int workers = 0;
  for (PreparedProgram& program : prepared.programs) {
    auto count = TRY(topology::resolve_nproc(program.command.nproc));
    program.workers = count;
    workers += count;
  }
  const bool several = workers > 1 || spec.rendezvous.several_machines();
  std::vector<std::string> names;  // of worlds
  std::vector<int> sizes;
  for (PreparedProgram& program : prepared.programs) {
    program.first_slot = prepared.workers();
    const int index = static_cast<int>(&program - prepared.programs.data());
    if (!program.command.has_world()) {
      if (program.command.mpi != Mpi::automatic && program.command.mpi != Mpi::none) {
        return fail(Errc::invalid_argument,
                    concat(program.command.role, " has --mpi and no world; give it --world=NAME"));
      }
      for (int i = 0; i < program.workers; ++i) prepared.places.push_back({index, i, i});
      continue;
    }
    auto serving = TRY(choose_mpi(spec, prepared.parent, program, several));
    const bool in_mpi = program.command.world.empty() && serving.is_on();
    const std::string name = in_mpi ? "mpi" : program.command.world;
    const auto known = name.empty() ? names.end() : std::find(names.begin(), names.end(), name);
    program.world = static_cast<int>(known - names.begin());
    if (known == names.end()) {
      names.push_back(name);
      sizes.push_back(0);
    }
    int& size = sizes[static_cast<std::size_t>(*program.world)];
    program.first_local_rank = size;
    for (int i = 0; i < program.workers; ++i) prepared.places.push_back({index, size++, i});
    TRY(serve_mpi(program, std::move(serving), prepared));
  }
  prepared.worlds = std::max(1, static_cast<int>(names.size()));
  for (const PreparedProgram& program : prepared.programs) {
    if (program.world != prepared.mpi_world || program.command.mpi != Mpi::none) continue;
    return fail(Errc::invalid_argument, concat(program.command.role, " has --mpi=none, and its world ",
                                               program.command.world, " is one of MPI; give it another --world"));
  }
  return {};
}

/// Divides the CPUs among the workers of all programs that ask for it, cores and NUMA nodes each for themselves.
Result<void> bind_workers(const LaunchSpec& spec, Preparation& prepared) {
  const auto asks = [](const ProgramSpec& program) { return program.bind != BindMode::none; };
  if (!spec.report_bindings && std::ranges::none_of(spec.programs, asks)) return {};
  prepared.cpus = topology::read_cpu_layout(TRY(topology::allowed_cpus()));
  for (const BindMode mode : {BindMode::cores, BindMode::numa}) {
    std::vector<std::size_t> slots;
    for (std::size_t slot = 0; slot < prepared.places.size(); ++slot) {
      if (prepared.of(static_cast<int>(slot)).command.bind == mode) slots.push_back(slot);
    }
    const auto plan = topology::plan_bindings(mode, static_cast<int>(slots.size()), prepared.cpus);
    for (const std::string& warning : plan.warnings) say(Level::warning, warning);
    if (!plan.cpus.empty()) prepared.binding.cpus.resize(prepared.places.size());
    for (std::size_t i = 0; i < plan.cpus.size(); ++i) prepared.binding.cpus[slots[i]] = plan.cpus[i];
  }
  return {};
}

}  // namespace

Result<Preparation> prepare(const LaunchSpec& spec, const char* const* environment) {
  Preparation prepared;
  prepared.parent = Environment(environment);
  prepared.full_host = full_host_name();
  prepared.hostname = short_host_name(prepared.full_host);
  prepared.first_main = first_main(spec.programs);
  for (const ProgramSpec& program : spec.programs) TRY(prepare_program(spec, program, prepared));
  if (const std::string& interface = spec.rendezvous.interface; !interface.empty()) TRY(check_interface(interface));
  if (spec.events_file) TRY(EventsFile::check(*spec.events_file));
  for (const std::string& file : spec.report_files) TRY(check_report_file(file));
  TRY(choose_gpus(prepared));
  TRY(place_workers(spec, prepared));
  TRY(exchange_addresses(prepared));
  note_small_shm(spec, prepared.workers());
  // Only on one machine the end of the job knows whether they have met.
  if (prepared.programs.size() == 1 && prepared.workers() > 1 && !spec.rendezvous.several_machines()) {
    PreparedProgram& only = prepared.programs.front();
    const std::string script = script_of(only);
    const auto call = script.ends_with(".py") ? worker_env::meeting_call(script, only.directory) : "";
    if (!call.empty()) only.meets_by = concat(script, " has ", call);
  }

  TRY(bind_workers(spec, prepared));
  if (spec.stdin_.kind == StdinSpec::Kind::rank && spec.stdin_.rank >= prepared.first().workers) {
    return fail(Errc::invalid_argument,
                concat("--stdin=", spec.stdin_.rank, ": there is no such rank; ranks go from 0 to ",
                       prepared.first().workers - 1));
  }
  return prepared;
}

int Preparation::slot_of(int world, int local_rank) const {
  for (const PreparedProgram& program : programs) {
    const int index = local_rank - program.first_local_rank;
    if (program.world == world && index >= 0 && index < program.workers) return program.first_slot + index;
  }
  return -1;
}

std::set<int> Preparation::services() const {
  std::set<int> slots;
  for (int slot = 0; slot < workers(); ++slot) {
    if (is_service(slot)) slots.insert(slot);
  }
  return slots;
}

std::vector<std::string> Preparation::bindings() const {
  std::vector<std::string> names;
  for (std::size_t slot = 0; slot < places.size(); ++slot) {
    names.push_back(RankName{role_of(static_cast<int>(slot)), places[slot].local_rank}.text());
  }
  return topology::describe_bindings(binding, names, cpus);
}

const PreparedProgram* Preparation::preloading() const {
  const auto found = std::ranges::find_if(programs, [](const auto& one) { return !one.command.preload.empty(); });
  return found == programs.end() ? nullptr : &*found;
}

std::vector<RankAssignment> ranks_by_program(const Preparation& prepared, const RankAssignment& node,
                                             const std::vector<int>& ports) {
  if (prepared.programs.size() == 1) return {node};
  std::vector<int> sizes(static_cast<std::size_t>(prepared.worlds));
  for (const PreparedProgram& program : prepared.programs) {
    if (program.world) sizes[static_cast<std::size_t>(*program.world)] += program.workers;
  }
  std::vector<RankAssignment> all;
  for (const PreparedProgram& program : prepared.programs) {
    RankAssignment& ranks = all.emplace_back(node);
    ranks.world_size = ranks.local_world_size = ranks.role_world_size = program.workers;
    ranks.role_first_local_rank = program.first_local_rank;
    if (!program.world) continue;
    const auto world = static_cast<std::size_t>(*program.world);
    ranks.world_size = ranks.local_world_size = sizes[world];
    ranks.master_port = ports[world];
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> interface_variables(const LaunchSpec& spec,
                                                                     const std::string& master_addr,
                                                                     const std::string& host_name) {
  const std::string& named = spec.rendezvous.interface;
  if (!named.empty()) {
    return {{"GLOO_SOCKET_IFNAME", named}, {"NCCL_SOCKET_IFNAME", named}, {"UCX_NET_DEVICES", named}};
  }
  const auto peer = SocketAddress::parse(master_addr, 1);
  if (!spec.rendezvous.several_machines() || !peer || peer->is_wildcard_or_loopback() ||
      IpAddress::parse(master_addr)->is_loopback() || is_in_hosts_file(host_name)) {
    return {};
  }
  const auto local = source_address_to(*peer);
  const std::string found = local ? interface_of(*local) : "";
  if (found.empty()) return {};
  return {{"GLOO_SOCKET_IFNAME", found}};
}

}  // namespace ddrun::agent
