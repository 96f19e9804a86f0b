#include "option_table.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <type_traits>

#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"
#include "ddrun/cluster/detect.hpp"
#include "settings.hpp"

namespace ddrun::cli {

namespace {

// ---- values that only one option has

/// Any text, also empty.
Result<std::string> text(std::string_view value) { return std::string(value); }

/// Names of Python modules.
Result<std::vector<std::string>> parse_modules(std::string_view value) {
  std::vector<std::string> modules;
  if (trim_typed(value).empty()) return modules;  // as in --preload=$UNSET
  for (const std::string& part : split(value, ',')) {
    const std::string name(trim_typed(part));
    const bool valid = !name.empty() && name.find_first_of(" /\\;'\"=") == std::string::npos;
    if (!valid)
      return bad(concat("'", name, "' is no name of a Python module; give names such as torch,mypackage.data"));
    modules.push_back(name);
  }
  return modules;
}

/// An empty text counts as not given, as in --log-dir=$UNSET.
template <class Parse>
auto or_unset(std::string_view value, Parse parse)
    -> Result<std::optional<typename std::invoke_result_t<Parse, std::string_view>::value_type>> {
  if (value.empty()) return std::nullopt;
  return parse(value);
}

Result<std::set<int>> parse_local_ranks(std::string_view value) {
  return parse_number_set(value, 99'999, "a local rank");
}

Result<std::set<int>> parse_exit_codes(std::string_view value) { return parse_number_set(value, 255, "an exit code"); }

/// -v is a number (DDRUN_VERBOSE=2), a boolean, or repeated.
Result<int> parse_count(std::string_view value) {
  if (auto number = parse_int(value, 0, 9)) return number;
  if (const auto yes = parse_bool(value)) return *yes ? 1 : 0;
  return bad(concat("'", value, "' is not a number from 0 to 9"));
}

/// torchrun's handler dynamic_rendezvous prints nothing for workers either.
Result<std::string> parse_event_handler(std::string_view value) {
  return parse_choice(value == "dynamic_rendezvous" ? "null" : value, "null console");
}

Result<std::uint64_t> parse_rotation(std::string_view value) {
  auto bytes = parse_size(value);
  if (bytes && *bytes != 0 && *bytes < 1024) {
    return bad(concat("'", value, "' is too small: give 0 (never) or at least 1K"));
  }
  return bytes;
}

/// May be a file (with --rdzv-conf) or several members of etcd; check_combinations() decides.
Result<std::string> parse_endpoints(std::string_view value) {
  value = trim_typed(value);
  if (value.empty() || value.find('/') != std::string_view::npos) return text(value);
  std::vector<std::string> endpoints;
  for (const std::string& one : split(value, ',')) endpoints.push_back(TRY(parse_endpoint(one)));
  return join(endpoints, ",");
}

/// Only "default", torchrun's behaviour without a plug-in.
Result<std::string> parse_logs_specs(std::string_view value) {
  if (value == "default") return text(value);
  return bad(concat("'", value,
                    "' would be a Python plug-in, which ddrun cannot load; use default, --log-dir, --redirects, --tee "
                    "and --label"));
}

Result<std::optional<Milliseconds>> parse_fence(std::string_view value) {
  if (value == "auto") return std::nullopt;
  return parse_time(value);
}

Result<Mpi> parse_mpi(std::string_view value) {
  if (value == "auto") return Mpi::automatic;
  if (value == "pmi") return Mpi::pmi;
  if (value == "pmix") return Mpi::pmix;
  if (value == "none") return Mpi::none;
  if (auto on = parse_bool(value)) return *on ? Mpi::both : Mpi::none;
  return bad(concat("'", value, "' is not served: give pmi (PMI-1: MPICH, Intel MPI), pmix (Open MPI), auto or none"));
}

/// How a service is found ready.
Result<std::string> parse_ready(std::string_view value) {
  const bool has_path = value.starts_with("http:/") && !value.starts_with("http://");
  const bool is_plain = std::ranges::all_of(value, [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (value.empty() || value == "tcp" || (has_path && is_plain)) return std::string(value);
  return bad(concat("'", value, "' is neither tcp nor http:/PATH, such as http:/health"));
}

/// etcd's leases last whole seconds; below two there is no time for a renewal.
Result<Milliseconds> parse_lease_ttl(std::string_view value) {
  auto time = parse_time(value);
  if (time && (*time < std::chrono::seconds(2) || time->count() % 1000 != 0)) {
    return bad(concat("'", value, "' is not a whole number of seconds from 2 on"));
  }
  return time;
}

Result<void> set_nodes(ParsedOptions& parsed, std::string_view value) {
  std::tie(parsed.spec.rendezvous.min_nodes, parsed.spec.rendezvous.max_nodes) = TRY(parse_nnodes(value));
  return {};
}

std::string nodes_text(const RendezvousSpec& spec) {
  if (spec.min_nodes == spec.max_nodes) return std::to_string(spec.max_nodes);
  return concat(spec.min_nodes, ":", spec.max_nodes);
}

Result<void> add_variable(ParsedOptions& parsed, std::string_view value) {
  auto pair = TRY(parse_assignment(value));
  auto& all = parsed.program.env;
  const auto same = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.first == pair.first; });
  if (same == all.end()) all.push_back(std::move(pair));
  else same->second = std::move(pair.second);
  return {};
}

/// Read here, where the command is typed: the hosts of --hosts get the variables, not the file.
Result<void> add_env_file(ParsedOptions& parsed, std::string_view value) {
  if (value.empty()) return {};
  auto read = TRY(read_env_file(std::string(value), parsed.program.has_world(), parsed.file_warnings));
  parsed.env_files.emplace_back(value);
  std::move(read.begin(), read.end(), std::back_inserter(parsed.file_variables));
  return {};
}

Result<void> add_report(ParsedOptions& parsed, std::string_view value) {
  auto file = TRY(parse_non_empty(value));
  auto& files = parsed.spec.report_files;
  if (std::ranges::find(files, file) != files.end()) return bad(concat("'", file, "' was given twice; leave one out"));
  files.push_back(std::move(file));
  return {};
}

/// NAME, or NAME=VALUE.
Result<void> add_exported(ParsedOptions& parsed, std::string_view value) {
  if (value.empty() || value[0] == '=') return bad(concat("'", value, "' is neither NAME nor NAME=VALUE"));
  parsed.spec.remote.exported.emplace_back(value);
  return {};
}

// ---- values as text

using Shown = std::vector<std::string>;

Shown shown(std::string value) { return value.empty() ? Shown{} : Shown{std::move(value)}; }
Shown shown(bool value) { return {value ? "true" : "false"}; }
Shown shown(int value) { return {std::to_string(value)}; }
Shown shown(std::uint64_t value) { return {std::to_string(value)}; }
Shown shown(double value) { return {number_text(value)}; }
Shown shown(Milliseconds value) { return {duration_text(value)}; }
Shown shown(const std::set<int>& value) { return shown(number_set_text(value)); }
Shown shown(const std::vector<std::string>& value) { return shown(filters_text(value)); }
Shown shown(const std::map<std::string, std::string>& value) { return shown(pairs_text(value)); }
Shown shown(const StreamSelection& value) { return {streams_text(value)}; }
Shown shown(const NprocSpec& value) { return {nproc_text(value)}; }
Shown shown(const StdinSpec& value) {
  if (value.kind == StdinSpec::Kind::rank) return shown(value.rank);
  return {value.kind == StdinSpec::Kind::all ? "all" : "none"};
}
template <class Value>
Shown shown(const std::optional<Value>& value) {
  return value ? shown(*value) : Shown{};
}
Shown shown_variables(const ParsedOptions& parsed) {
  Shown all;
  for (const auto& [name, value] : parsed.program.env) all.push_back(concat(name, "=", value));
  return all;
}

/// Stores a parsed value or returns the failure.
template <class To, class From>
Result<void> assign(To& to, Result<From> from) {
  if (!from) return tl::unexpected<Error>(std::move(from.error()));
  to = std::move(*from);
  return {};
}

/// Sets an enumeration whose values are named by `words`, in order.
template <class Enum>
Result<void> assign_enum(Enum& to, std::string_view value, std::string_view words) {
  TRY(parse_choice(value, words));
  const auto all = split(words, ' ');
  to = static_cast<Enum>(std::find(all.begin(), all.end(), value) - all.begin());
  return {};
}

// ---- the tables

constexpr bool pet = true;
constexpr bool own = false;

// The setter of a field from the text `v`, and its display.
#define SET(field, value) [](ParsedOptions& d, std::string_view v) { return assign(d.field, value); }
#define SHOW(value) [](const ParsedOptions& d) { return shown(value); }
#define SETTING(field, value) SET(field, value), SHOW(d.field)
#define CHOICE(field, words) SETTING(field, parse_choice(v, words)), words
#define ENUM(field, words)                                                             \
  [](ParsedOptions& d, std::string_view v) { return assign_enum(d.field, v, words); }, \
      SHOW(split(words, ' ')[static_cast<std::size_t>(d.field)]), words

constexpr Option workers_table[] = {
    {"nproc-per-node", "n", "N", Kind::choice_or_int, pet,
     "Workers on this machine: a number, cpu (one per usable CPU), gpu (one per GPU), or auto (gpu if there is one, "
     "else cpu). -np is the same",
     SETTING(program.nproc, parse_nproc(v)), "auto cpu gpu"},
    {"role", "", "NAME", Kind::text, pet, "Name of the workers' role, for ROLE_NAME and log prefixes",
     SET(program.role, text(v)), [](const ParsedOptions& d) { return Shown{d.program.role}; }},
    {"service", "", "", Kind::flag, own,
     "With several programs: this one serves the others. It starts first, no torchrun variable is set, and it is "
     "stopped when the others have ended",
     SETTING(program.is_service, parse_bool(v))},
    {"world", "", "NAME", Kind::text, own,
     "With several programs: make the workers of all that have this NAME one world, with the ranks of the first "
     "program first; none: no ranks and no store",
     SETTING(program.world, text(v))},
    {"gpus", "", "N", Kind::choice_or_int, own,
     "The program's GPUs: the next N of this machine's, or a list such as 0-3; 0: none. A service's workers have a "
     "share each",
     SETTING(program.gpus, text(trim_typed(v)))},
    {"port", "", "N", Kind::integer, own,
     "The port that the program listens on, its next worker on the next one: ${port} in its words, DDRUN_LISTEN_PORT. "
     "It must be free",
     [](ParsedOptions& d, std::string_view v) { return assign(d.program.port, parse_int(v, 1, 65535)); },
     [](const ParsedOptions& d) { return d.program.port == 0 ? Shown{} : shown(d.program.port); }},
    {"ready", "", "HOW", Kind::text, own,
     "The other programs start when this --service is ready: tcp, its port is listened on, or http:/PATH, a GET of it "
     "answers 2xx",
     SETTING(program.ready, parse_ready(v))},
    {"ready-timeout", "", "TIME", Kind::duration, own, "End the job when the --service is not ready after TIME",
     SETTING(program.ready_timeout, parse_positive_time(v))},
    {"stdin", "", "RANK", Kind::choice_or_int, own,
     "Which worker reads ddrun's standard input: one rank, all or none; the others read end of file",
     SETTING(spec.stdin_, parse_stdin(v)), "all none"},
    {"env", "", "NAME=VALUE", Kind::assignments, own, "Set a variable for the workers; may be repeated", add_variable,
     shown_variables},
    {"env-file", "", "FILE", Kind::files, own,
     "Set the variables of FILE, lines NAME=VALUE, for the workers; --env and -x win over them; may be repeated",
     add_env_file, [](const ParsedOptions& d) { return d.env_files; }},
    {"chdir", "", "DIR", Kind::directory, own, "Start the workers in DIR", SETTING(program.chdir, parse_non_empty(v))},
    {"seed", "", "N", Kind::choice_or_int, own, "Give each worker DDRUN_SEED, a number mixed from N and its rank",
     SETTING(spec.seed, parse_seed(v))},
    {"preload", "", "MODULES", Kind::names, own,
     "Import these Python modules once on each machine and start workers as forks of that process: torch,mypackage",
     SET(program.preload, parse_modules(v)),
     [](const ParsedOptions& d) { return shown(join(d.program.preload, ",")); }},
    {"mpi", "", "", Kind::flag_or_choice, own,
     "Make the workers the ranks of one MPI world: --mpi, or only --mpi=pmi for MPICH and Intel MPI or --mpi=pmix for "
     "Open MPI; --mpi=none; unset or --mpi=auto: if the program is linked with one of these",
     SET(program.mpi, parse_mpi(v)),
     [](const ParsedOptions& d) {
       return Shown{split("auto true pmi pmix none", ' ')[static_cast<std::size_t>(d.program.mpi)]};
     },
     "auto pmi pmix none"},
    {"mpi-lib", "", "FILE", Kind::file, own,
     "Serve Open MPI by this libpmix.so.2. Unset: by the one beside Open MPI, else by the system's",
     SETTING(spec.mpi_lib, parse_non_empty(v))},
    {"bind", "", "HOW", Kind::choice, own,
     "Bind workers to CPUs: none, cores (an equal share of the cores each) or numa (the CPUs of one NUMA node each)",
     ENUM(program.bind, "none cores numa")},
    {"report-bindings", "", "", Kind::flag, own, "Say which CPUs each worker was bound to",
     SETTING(spec.report_bindings, parse_bool(v))},
    {"virtual-local-rank", "", "", Kind::flag, pet, "Every worker sees LOCAL_RANK=0 and only its own GPU",
     SETTING(program.virtual_local_rank, parse_bool(v))},
};

constexpr Option program_table[] = {
    {"module", "m", "", Kind::flag, pet, "The program is a Python module, run as 'python -m'",
     SETTING(module, parse_bool(v))},
    {"no-python", "", "", Kind::flag, pet, "Execute the program itself, also if its name ends in .py",
     SETTING(no_python, parse_bool(v))},
    {"run-path", "", "", Kind::flag, pet,
     "Run the program with Python, whatever its name, record its exception, and let workers that have returned wait "
     "for each other; wins over -m and --no-python",
     SETTING(run_path, parse_bool(v))},
};

constexpr Option failure_table[] = {
    {"max-restarts", "", "N", Kind::integer, pet, "Start the whole group again up to N times after a failure",
     SETTING(spec.restart.max_restarts, parse_int(v, 0, 1'000'000))},
    {"restart-backoff", "", "TIME", Kind::duration, own,
     "Pause before the first restart; doubles with each further one, up to 60 s",
     SETTING(spec.restart.backoff, parse_time(v))},
    {"restart-window", "", "TIME", Kind::duration, own,
     "Count only the restarts of the last TIME against --max-restarts",
     SETTING(spec.restart.window, parse_positive_time(v))},
    {"same-cause", "", "N", Kind::integer, own,
     "End the job after N failures in a row with one cause, or two within 1 s of the start; 0: restart all the same",
     SETTING(spec.restart.same_cause, parse_int(v, 0, 1'000'000))},
    {"no-restart-on", "", "CODES", Kind::numbers, own,
     "A first failure with one of these exit codes ends the job: 2,64-78",
     SETTING(spec.restart.no_restart_on, parse_exit_codes(v))},
    {"success-on", "", "CODES", Kind::numbers, own, "Exit codes of workers that count as success",
     SETTING(spec.restart.success_on, parse_exit_codes(v))},
    {"timeout", "", "TIME", Kind::duration, own,
     "End the whole job after TIME (30, 90s, 20m, 1h30m), with exit status 124",
     SETTING(spec.timeout, parse_positive_time(v))},
    {"shutdown-timeout", "", "TIME", Kind::duration, pet, "From the first signal to a worker until SIGKILL",
     SETTING(spec.stop.grace, parse_time(v)), "", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
    {"signals-to-handle", "", "NAMES", Kind::names, pet,
     "Signals that end the job in order; others are passed on to the workers and the job goes on",
     SET(spec.stop.ending_signals, parse_signals(v)),
     [](const ParsedOptions& d) { return Shown{signals_text(d.spec.stop.ending_signals)}; }},
    {"end-with-parent", "", "", Kind::flag, own, "End the job in order when the process that started ddrun has ended",
     SETTING(spec.end_with_parent, parse_bool(v))},
    {"exit-skew", "", "TIME", Kind::duration, own,
     "Workers may run so long after the first has ended well, then the job ends with status 124",
     SETTING(spec.exit_skew, parse_positive_time(v))},
    {"before", "", "COMMAND", Kind::text, own,
     "Run this command of the shell once on each machine before its first workers; if it fails, so does the job",
     SETTING(spec.commands.before, text(v))},
    {"before-each", "", "WHAT", Kind::choice, own, "Run --before once for the job, or for each attempt",
     ENUM(spec.commands.before_each, "job attempt")},
    {"after", "", "COMMAND", Kind::text, own,
     "Run this command of the shell on each machine after its last workers, with DDRUN_EXIT_CODE and DDRUN_REPORT",
     SETTING(spec.commands.after, text(v))},
    {"events", "", "FILE", Kind::file, own,
     "Append a line of JSON to FILE for each event of the job: round, restart, node lost, verdict",
     SETTING(spec.events_file, parse_non_empty(v))},
    {"report", "", "FILE", Kind::files, own,
     "Write how every worker of every attempt ended to FILE, as JSON, or JUnit's XML for a .xml; may be repeated",
     add_report, [](const ParsedOptions& d) { return d.spec.report_files; }},
};

constexpr Option output_table[] = {
    {"redirects", "r", "STREAMS", Kind::streams, pet,
     "Send workers' output to files only: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:3,12:1",
     SETTING(program.streams.redirects, parse_streams(v))},
    {"tee", "t", "STREAMS", Kind::streams, pet, "Send workers' output to files and the console; written as for -r",
     SETTING(program.streams.tee, parse_streams(v))},
    {"log-dir", "", "DIR", Kind::directory, pet,
     "Where log files go, made if missing; /dev/null for no files. Unset: a new directory, if one is needed",
     SETTING(spec.log.dir, or_unset(v, parse_non_empty))},
    {"log-rotate", "", "SIZE", Kind::size, own,
     "Begin a new log file when one would grow over SIZE (64K, 10M, 1G); 0: never",
     SETTING(spec.log.rotate_bytes, parse_rotation(v))},
    {"label", "", "WHAT", Kind::choice, own,
     "What stands before each line on the console: rank, local (rank), host (and rank), none, or torchrun (role and "
     "local rank); auto: the rank if there is more than one worker",
     ENUM(spec.log.label, "auto rank local host none torchrun")},
    {"log-line-prefix-template", "", "TEXT", Kind::text, pet,
     "Own text instead of a label; ${role_name}, ${local_rank}, ${rank} and ${hostname} are replaced",
     SETTING(spec.log.line_prefix_template, text(v)), "", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},
    {"fold", "", "WHEN", Kind::choice, own,
     "Show equal lines of several ranks once, as [0-3]: always, never, or auto: if the console is a terminal",
     ENUM(spec.log.fold, "auto always never")},
    {"progress", "", "WHAT", Kind::choice, own,
     "Of lines that are rewritten, as progress bars are, show rows (one for each rank, on a terminal), last (the last "
     "state, now and then) or all; auto: rows on a terminal, else last",
     ENUM(spec.log.progress, "auto rows last all")},
    {"pty", "", "WHEN", Kind::choice, own,
     "Give workers pseudo-terminals instead of pipes: always, never, or auto: if the console is a terminal",
     ENUM(spec.log.pty, "auto always never")},
    {"timestamps", "", "", Kind::flag, own, "Put the time before each line on the console",
     SETTING(spec.log.timestamps, parse_bool(v))},
    {"local-ranks-filter", "", "RANKS", Kind::numbers, pet,
     "Show only these local ranks on the console: 0,8-15. Files are not affected",
     SETTING(program.streams.local_ranks_filter, or_unset(v, parse_local_ranks))},
    {"duplicate-stdout-filters", "", "TEXTS", Kind::names, pet,
     "Copy lines of stdout that contain one of these texts to filtered_stdout.log; comma list, ',,' is a comma",
     SETTING(spec.log.duplicate_stdout_filters, parse_filters(v))},
    {"duplicate-stderr-filters", "", "TEXTS", Kind::names, pet, "The same for stderr and filtered_stderr.log",
     SETTING(spec.log.duplicate_stderr_filters, parse_filters(v))},
};

constexpr Option launcher_table[] = {
    {"config", "", "FILE", Kind::file, own,
     "Read settings from a TOML file; keys are long options without dashes in front"},
    {"dry-run", "", "", Kind::flag, own, "Show what would be started, and start nothing",
     SETTING(spec.dry_run, parse_bool(v))},
    {"verbose", "v", "", Kind::count, own, "Say more; twice: say everything", SETTING(verbose, parse_count(v))},
    {"quiet", "q", "", Kind::count, own, "Only warnings and errors; twice: only errors",
     SETTING(quiet, parse_count(v))},
    {"color", "", "WHEN", Kind::choice, own,
     "Colour labels and ddrun's own lines: auto (on a terminal, unless NO_COLOR is set), always or never",
     ENUM(spec.log.color, "auto always never")},
    {"ci", "", "WHERE", Kind::choice, own,
     "Fold the output and mark the failure as github or gitlab show it; auto: where GITHUB_ACTIONS or GITLAB_CI is "
     "true",
     CHOICE(ci, "auto github gitlab none")},
    {"event-log-handler", "", "WHERE", Kind::choice, pet,
     "console: one JSON object per event of a worker's life, on stderr",
     SETTING(spec.event_log_handler, parse_event_handler(v)), "null console"},
    {"print-completion", "", "SHELL", Kind::choice, own, "The same as 'ddrun completion SHELL'", nullptr, nullptr,
     "bash zsh fish"},
    {"version", "V", "", Kind::action, own, "Show version, commit and what was compiled in"},
    {"help", "h", "", Kind::action, own, "Show all options, or the one that is named behind it; -h: one screen"},
};

const Option rendezvous_table[] = {
    {"standalone", "", "", Kind::flag, pet, "This machine alone, on a free port, with a new job id",
     SETTING(spec.rendezvous.standalone, parse_bool(v))},
    {"nnodes", "", "N", Kind::choice_or_int, pet, "Machines, as N or MIN:MAX", set_nodes,
     SHOW(nodes_text(d.spec.rendezvous))},
    {"node-rank", "", "N", Kind::integer, pet, "Rank of this machine",
     SETTING(spec.rendezvous.node_rank, parse_int(v, 0, 1'000'000))},
    {"rdzv-backend", "", "NAME", Kind::choice, pet,
     "static: --node-rank counts; c10d: it is a wish; etcd: the same, and another machine takes over when the "
     "coordinator's is lost. On one machine they are the same",
     CHOICE(spec.rendezvous.backend, "static c10d etcd etcd-v2")},
    {"rdzv-endpoint", "", "HOST[:PORT]", Kind::text, pet,
     "Where to meet; on one machine its port is MASTER_PORT, on several the coordinator's; with etcd its members",
     SETTING(spec.rendezvous.endpoint, parse_endpoints(v))},
    {"rdzv-id", "", "ID", Kind::text, pet,
     "Name of the job, in TORCHELASTIC_RUN_ID and log directories; empty: a random one",
     SETTING(spec.rendezvous.id, text(v))},
    {"rdzv-conf", "", "K=V,...", Kind::pairs, pet, "Further settings of the rendezvous",
     SETTING(spec.rendezvous.conf, parse_pairs(v))},
    {"master-addr", "", "HOST", Kind::text, pet,
     "On one machine the workers' MASTER_ADDR; on several the coordinator's host, unless --rdzv-endpoint names it",
     SETTING(spec.rendezvous.master_addr, or_unset(v, parse_host))},
    {"master-port", "", "PORT", Kind::integer, pet, "Port of the store, MASTER_PORT; unset or 0: a free one",
     SETTING(spec.rendezvous.master_port, parse_int(v, 0, 65535))},
    {"local-addr", "", "HOST", Kind::text, pet, "Address of this machine, for the others",
     SETTING(spec.rendezvous.local_addr, or_unset(v, parse_host))},
    {"env-detect", "", "SCHEME", Kind::choice, own,
     "The scheduler or launcher whose variables describe the job; options that are given take precedence",
     CHOICE(env_detect, cluster::detect_schemes)},
    {"keep-scheduler-env", "", "", Kind::flag, own,
     "Leave the ranks that srun or mpirun gave to ddrun in the environment of workers",
     SETTING(spec.keep_scheduler_env, parse_bool(v))},
    {"store-max-memory", "", "SIZE", Kind::size, own,
     "What the workers' store may take; a client that wants more is cut off; 0: no limit",
     SET(spec.rendezvous.store_max_memory, parse_size(v)), SHOW(bytes_text(d.spec.rendezvous.store_max_memory))},
};

constexpr Option several_table[] = {
    {"last-call", "", "TIME", Kind::duration, own, "With MIN nodes there, wait so long for more before the first round",
     SETTING(spec.rendezvous.last_call, parse_time(v))},
    {"join-timeout", "", "TIME", Kind::duration, own, "Give up when not enough nodes are there after TIME",
     SETTING(spec.rendezvous.join_timeout, parse_positive_time(v))},
    {"heartbeat-interval", "", "TIME", Kind::duration, own,
     "How often the coordinator asks each agent whether it is there",
     SETTING(spec.rendezvous.heartbeat_interval, parse_positive_time(v))},
    {"heartbeat-misses", "", "N", Kind::integer, own, "A node that is silent for N intervals is lost",
     SETTING(spec.rendezvous.heartbeat_misses, parse_int(v, 1, 10'000))},
    {"coordinator-timeout", "", "TIME", Kind::duration, own,
     "A node that has lost the coordinator stops its workers, and searches for it for TIME",
     SETTING(spec.rendezvous.coordinator_timeout, parse_time(v))},
    {"rdzv-lease", "", "COMMAND", Kind::text, own,
     "A program that decides which machine runs the coordinator, as --rdzv-backend=etcd does; another one takes over "
     "when that is lost",
     SETTING(spec.rendezvous.lease, text(v))},
    {"lease-ttl", "", "TIME", Kind::duration, own,
     "With etcd or a lease: a coordinator that is silent for so long is followed by another one",
     SETTING(spec.rendezvous.lease_ttl, parse_lease_ttl(v))},
    {"fence", "", "TIME", Kind::duration, own,
     "After the loss of a node, from its last sign of life, wait so long before the next round; auto: while its "
     "workers may still run",
     SET(spec.rendezvous.fence, parse_fence(v)),
     SHOW(d.spec.rendezvous.fence ? duration_text(*d.spec.rendezvous.fence) : "auto"), "auto"},
    {"node-max-failures", "", "N", Kind::integer, own,
     "Leave a host out once its workers have failed N times; 0: never",
     SETTING(spec.rendezvous.node_max_failures, parse_int(v, 0, 1'000'000))},
    {"secret-file", "", "FILE", Kind::file, own,
     "The job's secret, the same on all machines; without it $DDRUN_SECRET, or ~/.config/ddrun/secret, which the first "
     "agent makes",
     SETTING(spec.rendezvous.secret_file, parse_non_empty(v))},
    {"interface", "", "NAME", Kind::text, own,
     "The network interface for Gloo, NCCL and UCX. Unset: for Gloo the one that leads to MASTER_ADDR, unless the "
     "hosts file has an address of this machine for its name",
     SETTING(spec.rendezvous.interface, text(v))},
    {"signals-to-all", "", "", Kind::flag, own,
     "Pass SIGUSR1 and SIGUSR2 that any agent gets to the workers of all machines",
     SETTING(spec.rendezvous.signals_to_all, parse_bool(v))},
    {"insecure", "", "", Kind::flag, own, "No secret: any host that reaches the coordinator's port may join the job",
     SETTING(spec.rendezvous.insecure, parse_bool(v))},
};

constexpr Option remote_table[] = {
    {"hosts", "", "LIST", Kind::names, own,
     "Start the job on these hosts, through ssh: HOST or HOST:WORKERS, separated by commas",
     SETTING(spec.remote.hosts, parse_non_empty(v))},
    {"hostfile", "", "FILE", Kind::file, own,
     "The same from a file, one host on a line, in the form of Open MPI, MPICH, PBS, LSF or SGE",
     SETTING(spec.remote.hostfile, parse_non_empty(v))},
    {"export", "x", "NAME[=VALUE]", Kind::assignments, own,
     "Set a variable for the workers, on all hosts, to VALUE or to what it is here; may be repeated", add_exported,
     [](const ParsedOptions& d) { return d.spec.remote.exported; }},
    {"ssh", "", "COMMAND", Kind::text, own, "Reach the hosts by this command, such as 'ssh -F file'",
     SETTING(spec.remote.ssh, parse_non_empty(v))},
};

constexpr Option torchrun_table[] = {
    {"numa-binding", "", "HOW", Kind::choice, own,
     "node and socket are taken as --bind=numa, exclusive and core-complex as --bind=cores",
     CHOICE(numa_binding, "node socket exclusive core-complex")},
    {"start-method", "", "HOW", Kind::choice, pet,
     "exec and spawn: each worker is a new process; forkserver: with --preload; fork is not done",
     CHOICE(start_method, "exec spawn fork forkserver")},
    {"monitor-interval", "", "SECONDS", Kind::number, pet, "No effect: ddrun is notified when a worker ends",
     SETTING(monitor_interval, parse_positive_number(v))},
    {"logs-specs", "", "NAME", Kind::text, own,
     "No effect; other names than default are of Python plug-ins and refused",
     SETTING(logs_specs, parse_logs_specs(v))},
    {"use-env", "", "", Kind::flag, own, "Not needed: workers always find LOCAL_RANK in their environment",
     SETTING(use_env, parse_bool(v))},
};

#undef SET
#undef SHOW
#undef SETTING
#undef CHOICE
#undef ENUM

constexpr OptionGroup groups[] = {
    {"Workers", "one-machine.md", workers_table},
    {"Program", "python-workers.md", program_table},
    {"Failure, restart and the end", "one-machine.md", failure_table},
    {"Output", "output.md", output_table},
    {"ddrun itself", "options.md", launcher_table},
    {"Rendezvous, as with torchrun", "several-machines-reference.md", rendezvous_table},
    {"Several machines", "several-machines-reference.md", several_table},
    {"Other machines, through ssh", "ssh.md", remote_table},
    {"Taken from torchrun command lines", "coming-from-torchrun.md", torchrun_table},
};

}  // namespace

std::span<const OptionGroup> option_groups() { return groups; }

std::span<const Option* const> all_options() {
  static const std::vector<const Option*> options = [] {
    std::vector<const Option*> all;
    for (const OptionGroup& group : groups) {
      for (const Option& option : group.options) all.push_back(&option);
    }
    return all;
  }();
  return options;
}

const Option* find_option(std::string_view long_name) {
  const std::string name = with_dashes(long_name);
  for (const Option* option : all_options()) {
    if (option->name == name) return option;
  }
  return nullptr;
}

argv::Option as_argument(const Option& option) {
  // torchrun's own, so that a new option of ddrun leaves no line ambiguous.
  constexpr std::string_view without_variable = "help logs-specs numa-binding print-completion";
  const bool is_torchruns = option.pet || has_word(without_variable, option.name);
  return {option.name, option.shorts, option.metavar, option.help, option.kind == Kind::action, is_torchruns};
}

bool is_of_program(const Option& option) {
  constexpr std::string_view names =
      "nproc-per-node role service world gpus port ready ready-timeout env env-file chdir preload mpi bind "
      "numa-binding virtual-local-rank module no-python run-path redirects tee local-ranks-filter";
  return has_word(names, option.name);
}

std::vector<std::string> variables_of(const Option& option) {
  const auto with_prefix = [&](std::string_view prefix) {
    std::string text = concat(prefix, option.name);
    for (char& c : text) c = c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return text;
  };
  std::vector<std::string> names;
  // One for all programs would have no meaning.
  if (has_word("service world gpus port ready ready-timeout", option.name)) return names;
  if (option.is_setting() || option.name == "config") names.push_back(with_prefix("DDRUN_"));
  if (option.pet) names.push_back(with_prefix("PET_"));
  if (!option.other_variable.empty()) names.emplace_back(option.other_variable);
  return names;
}

}  // namespace ddrun::cli
