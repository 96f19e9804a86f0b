#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddrun/base/duration.hpp"

namespace ddrun {

// The job as configured by the user, as plain data: produced by lib/cli, read by all other modules. The initialisers
// are the only place for defaults.

/// How a program is run.
enum class ProgramKind {
  executable,       ///< executed directly, searched in PATH
  python_script,    ///< `$PYTHON -u name args…`
  python_module,    ///< `$PYTHON -u -m name args…`
  python_function,  ///< the script as torchrun's --run-path runs it: `$PYTHON -u -c … name args…`
};

/// --nproc-per-node
struct NprocSpec {
  enum class Kind { count, automatic, cpu, gpu };
  Kind kind = Kind::count;
  int count = 1;  ///< for Kind::count
};
/// "4", "auto", "gpu": the option's value.
[[nodiscard]] std::string nproc_text(const NprocSpec& nproc);
/// "-n 4 " for a suggested command; empty for one worker, the default.
[[nodiscard]] std::string count_option(const NprocSpec& nproc);

/// torchrun's digits: 0 none, 1 stdout, 2 stderr, 3 both.
enum class Streams : std::uint8_t { none = 0, out = 1, err = 2, both = 3 };
[[nodiscard]] constexpr bool has_out(Streams s) { return (static_cast<unsigned>(s) & 1U) != 0; }
[[nodiscard]] constexpr bool has_err(Streams s) { return (static_cast<unsigned>(s) & 2U) != 0; }

/// The value of --redirects or --tee: one digit for all ranks, or a digit per local rank (others: none).
struct StreamSelection {
  Streams all_ranks = Streams::none;
  std::map<int, Streams> by_local_rank;
  [[nodiscard]] Streams of(int local_rank) const;
  [[nodiscard]] bool any() const;
  bool operator==(const StreamSelection&) const = default;
};

/// Where a program's output goes, by local rank; those of several programs of one world count from 0 all the same.
struct StreamChoice {
  StreamSelection redirects;
  StreamSelection tee;
  /// Local ranks whose output the console shows; unset: all. Files are not affected.
  std::optional<std::set<int>> local_ranks_filter;
};

/// The prefix of a worker's line on the console.
enum class Label {
  automatic,  ///< "[rank] " if there is more than one worker
  rank,       ///< "[3] "
  local,      ///< "[local 1] "
  host,       ///< "[host:3] " with the short host name and the rank
  none,
  torchrun,  ///< "[default1]:" with role and local rank, as torchrun has it before lines of --tee
};

/// Whether a worker writes to its own pseudo-terminal instead of a pipe.
enum class PtyUse {
  automatic,  ///< if the console is a terminal
  always,     ///< also without a terminal, and for streams that would be inherited from ddrun or go to a file only
  never,
};

/// When something is done that suits a terminal.
enum class When {
  automatic,  ///< on a terminal
  always,
  never,
};

/// What the console shows of lines that '\r' rewrites, as progress bars are.
enum class Progress {
  automatic,  ///< `rows` on a terminal, else `last`
  rows,       ///< a row for each worker at the lower end of the terminal
  last,       ///< the last state: at a newline, at the end, and every ten seconds while it changes
  all,        ///< each byte
};

struct LogSpec {
  /// --log-dir. Unset: a new directory in $TMPDIR or /tmp, created when a file is needed. "/dev/null": no files.
  std::optional<std::string> dir;
  std::string line_prefix_template;  ///< ${role_name} ${local_rank} ${rank} ${hostname}; empty: see label
  Label label = Label::automatic;
  When fold = When::automatic;  ///< equal lines of several ranks are shown once
  Progress progress = Progress::automatic;
  When color = When::automatic;  ///< of labels; never: also where NO_COLOR forbids it
  /// Another ddrun shows the lines: descriptors for frames (logs/piece_frames.hpp) of stdout and stderr, or one twice.
  std::optional<std::pair<int, int>> frames;
  PtyUse pty = PtyUse::automatic;
  bool timestamps = false;  ///< local time with milliseconds before each console line
  std::vector<std::string> duplicate_stdout_filters;
  std::vector<std::string> duplicate_stderr_filters;
  std::uint64_t rotate_bytes = 0;  ///< a log file is rotated when it would grow over this; 0: never
  /// Each line's label is that of its rank (if there are several), so that one label can stand for several ranks.
  [[nodiscard]] bool labels_ranks() const {
    return line_prefix_template.empty() && (label == Label::automatic || label == Label::rank || label == Label::host);
  }
};

/// Whether the workers are ranks of one MPI world.
enum class Mpi {
  automatic,  ///< for a program that needs an MPI's library
  both,       ///< PMI-1, and PMIx if there is a libpmix
  pmi,        ///< PMI-1
  pmix,
  none,
};

/// A set of exit codes, as "0,3,100-120" on the command line.
using CodeSet = std::set<int>;

struct RestartPolicy {
  int max_restarts = 0;                ///< restarts of the whole group
  Milliseconds backoff{0};             ///< pause before the first restart; doubles up to 60 s
  std::optional<Milliseconds> window;  ///< set: max_restarts counts only restarts within this period
  int same_cause = 3;                  ///< this many consecutive failures with the same cause end the job; 0: no limit
  CodeSet no_restart_on;               ///< a first failure with one of these codes ends the job
  CodeSet success_on{0};               ///< exit codes that count as success
};

/// How a worker group is stopped.
struct StopPolicy {
  /// From the first signal until SIGKILL. Zero: SIGKILL at once.
  Milliseconds grace{30'000};
  /// Signals that end the job; forwarded to the workers once. Other signals are forwarded, and the job continues.
  std::set<int> ending_signals;  ///< default set in launch_spec.cpp: TERM INT HUP QUIT
  StopPolicy();
};

struct StdinSpec {
  enum class Kind { rank, all, none };
  Kind kind = Kind::rank;
  int rank = 0;  ///< for Kind::rank: the worker that gets ddrun's stdin; the others read end-of-file
};

enum class BindMode { none, cores, numa };

/// One of the job's programs, and how its workers run.
struct ProgramSpec {
  ProgramKind kind = ProgramKind::executable;
  std::string name;
  std::vector<std::string> args{};  ///< unchanged except for ${local_rank} and ${rank}
  bool no_python = false;           ///< --no-python: do not check whether an executable is a Python program
  std::string role = "default";
  bool is_service = false;  ///< --service: it runs while main programs do, and its success ends nothing
  std::string world{};      ///< --world: of all programs with this name; empty: its own, or that of MPI
  NprocSpec nproc{};
  std::string gpus{};       ///< --gpus: as in topology::GpuRequest
  int gpus_per_worker = 0;  ///< each one's share with `virtual_local_rank`; 0: one, chosen by its local rank
  int port = 0;             ///< --port: that its first worker listens on, and the next one on the next; 0: not given
  std::string ready{};      ///< "tcp", or "http:/PATH"; empty: not awaited
  Milliseconds ready_timeout{1'800'000};
  std::optional<std::string> chdir{};
  std::vector<std::pair<std::string, std::string>> env{};  ///< --env NAME=VALUE, in order
  std::vector<std::string> preload{};                      ///< Python modules that workers find imported
  Mpi mpi = Mpi::automatic;
  BindMode bind = BindMode::none;
  bool virtual_local_rank = false;
  StreamChoice streams{};

  /// That its worker with this number listens on; 0: none.
  [[nodiscard]] int port_of(int number) const { return port == 0 ? 0 : port + number; }
  /// Its workers are ranks that meet at a store.
  [[nodiscard]] bool has_world() const { return world != "none" && !(is_service && world.empty()); }
};

/// Index of the first main program.
[[nodiscard]] inline std::size_t first_main(const std::vector<ProgramSpec>& programs) {
  const auto main = std::ranges::find(programs, false, &ProgramSpec::is_service);
  return main == programs.end() ? 0 : static_cast<std::size_t>(main - programs.begin());
}

/// A worker of a machine. Its index among them is its slot: program by program, in order of local rank.
struct WorkerPlace {
  int program = 0;     ///< index into LaunchSpec::programs
  int local_rank = 0;  ///< in its world
  int number = 0;      ///< among the program's, which --redirects, --tee and --local-ranks-filter count
};

/// When --before runs on each machine.
enum class BeforeEach { job, attempt };

/// Shell commands that the agent runs on each machine; empty: none.
struct HostCommands {
  std::string before;  ///< before the first workers start
  BeforeEach before_each = BeforeEach::job;
  std::string after;  ///< after the last worker
};

/// A candidate address of the coordinator. A name is resolved when connecting.
struct Endpoint {
  std::string host;        ///< host name or address, without brackets
  std::uint16_t port = 0;  ///< 0: not given
  bool operator==(const Endpoint&) const = default;
};

/// Rendezvous options: members, endpoint, timeouts.
struct RendezvousSpec {
  std::string backend = "static";
  std::string endpoint;                     ///< as typed
  std::string id = "none";                  ///< empty, on one machine: a random one
  std::map<std::string, std::string> conf;  ///< of --rdzv-conf
  bool standalone = false;
  int min_nodes = 1;
  int max_nodes = 1;
  std::optional<int> node_rank;    ///< unset: assigned by the coordinator
  bool node_rank_is_wish = false;  ///< if it is another machine's, any
  std::string other_node_rank;     ///< what a scheduler says instead: "SLURM_NODEID is 1"; empty: the same, or nothing
  std::optional<std::string> master_addr;
  std::optional<int> master_port;  ///< unset: a free port
  std::optional<std::string> local_addr;
  std::string interface;                        ///< network interface for Gloo, NCCL and UCX; empty: not given
  std::uint64_t store_max_memory = 4ULL << 30;  ///< of the worker store, in bytes; 0: no limit

  // Several machines only.
  std::vector<Endpoint> coordinators;  ///< in the order to try; not empty once detection is complete
  int agents_expected = 0;             ///< agents that the scheduler started together; 0: unknown
  int first_round_nodes = 0;           ///< the first round waits for no more than these; 0: --last-call decides
  std::optional<bool> is_host;     ///< whether this agent runs the coordinator; unset: if the endpoint is this machine
  Milliseconds last_call{30'000};  ///< from MIN nodes to the first round; 0 if MIN is MAX
  Milliseconds join_timeout{600'000};  ///< until MIN nodes have joined
  Milliseconds heartbeat_interval{1'000};
  int heartbeat_misses = 3;                  ///< a node silent for this many intervals is lost
  Milliseconds coordinator_timeout{30'000};  ///< how long an agent searches for a lost coordinator
  /// Delay from the last heartbeat of a lost machine to the next round. Unset: until its workers must have ended if it
  /// fell silent; none if its connection was reset.
  std::optional<Milliseconds> fence;
  int node_max_failures = 0;  ///< failures of a host's workers after which it is excluded; 0: no limit
  std::optional<std::string> secret_file;
  bool insecure = false;          ///< no secret: any host that can connect may join
  std::string lease;              ///< a command that elects the coordinator's machine; empty: not given
  Milliseconds lease_ttl{5'000};  ///< whole seconds
  int coordinator_port = 0;       ///< used with a lease; 0: any
  bool signals_to_all = false;    ///< forward SIGUSR1 and SIGUSR2 to the workers of all machines

  [[nodiscard]] bool several_machines() const { return max_nodes > 1 && !standalone; }
  /// The value of `key` in --rdzv-conf, if given.
  [[nodiscard]] std::optional<std::string> conf_value(const std::string& key) const {
    const auto found = conf.find(key);
    return found == conf.end() ? std::nullopt : std::optional(found->second);
  }
  [[nodiscard]] bool is_etcd() const { return backend == "etcd" || backend == "etcd-v2"; }
  /// A lease elects the coordinator, so the job survives the loss of its machine.
  [[nodiscard]] bool has_lease() const { return is_etcd() || !lease.empty(); }
};

/// A job on machines reached from this one by ssh.
struct RemoteSpec {
  std::string hosts;  ///< --hosts as typed; empty: not given
  std::optional<std::string> hostfile;
  std::string ssh = "ssh";            ///< a command with options
  std::vector<std::string> exported;  ///< -x: NAME, or NAME=VALUE
  [[nodiscard]] bool asked_for() const { return !hosts.empty() || hostfile.has_value(); }
};

struct LaunchSpec {
  std::vector<ProgramSpec> programs{1};  ///< one, or several on one machine
  RendezvousSpec rendezvous;
  RemoteSpec remote;
  RestartPolicy restart;
  StopPolicy stop;
  LogSpec log;
  StdinSpec stdin_;
  bool report_bindings = false;
  bool keep_scheduler_env = false;        ///< workers inherit the rank variables that srun or mpirun set for ddrun
  std::optional<Milliseconds> timeout;    ///< limit for the whole job
  std::optional<Milliseconds> exit_skew;  ///< from the first worker's success to the last one's
  std::vector<std::string> report_files;
  std::optional<std::string> events_file;  ///< one JSON line per event of the job
  std::optional<std::uint64_t> seed;
  HostCommands commands;
  std::optional<std::string> mpi_lib;  ///< OpenPMIx's library, to serve PMIx by
  bool end_with_parent = false;
  bool dry_run = false;
  std::string started_as;                  ///< argv[0] of the ddrun that the user started; empty: unknown
  std::string event_log_handler = "null";  ///< "null" or "console"

  [[nodiscard]] const ProgramSpec& first() const { return programs[first_main(programs)]; }
  [[nodiscard]] ProgramSpec& first() { return programs[first_main(programs)]; }
  [[nodiscard]] bool has_several_programs() const { return programs.size() > 1; }
};

/// The result of one rendezvous round for one node, or for one program of it. All ranks are dense and start at 0.
struct RankAssignment {
  std::string run_id;       ///< TORCHELASTIC_RUN_ID
  std::uint64_t round = 0;  ///< increases with every restart and every membership change
  int restart_count = 0;    ///< one number for the whole job
  int max_restarts = 0;
  int node_rank = 0;  ///< torchrun's group rank
  int node_count = 1;
  int base_rank = 0;  ///< rank of this node's local rank 0
  int local_world_size = 1;
  int world_size = 1;
  int role_base_rank = 0;  ///< rank within the role of this node's local rank 0
  int role_world_size = 1;
  int role_first_local_rank = 0;  ///< of the role's first worker on this node, where several roles share a world
  std::string master_addr;        ///< an address, not a host name, unless the user gave a name
  int master_port = 0;
  std::string host;   ///< this machine's label: its short host name if that is unique in the job
  std::string hosts;  ///< labels of the round's first machines, by node rank: "h1, h2"; empty on one machine

  bool operator==(const RankAssignment&) const = default;

  [[nodiscard]] int rank_of(int local_rank) const { return base_rank + local_rank; }
  [[nodiscard]] int role_rank_of(int local_rank) const { return role_base_rank + local_rank - role_first_local_rank; }
};

}  // namespace ddrun
