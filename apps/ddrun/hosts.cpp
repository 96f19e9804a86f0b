#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <memory>

#include "commands.hpp"
#include "ddrun/agent/ci.hpp"
#include "ddrun/agent/events_file.hpp"
#include "ddrun/agent/report.hpp"
#include "ddrun/base/build_info.hpp"
#include "ddrun/base/environment.hpp"
#include "ddrun/base/exit_status.hpp"
#include "ddrun/base/messages.hpp"
#include "ddrun/base/proc.hpp"
#include "ddrun/base/shared_output.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cluster/detect.hpp"
#include "ddrun/cluster/hosts.hpp"
#include "ddrun/logs/rank_console.hpp"
#include "ddrun/process/guard.hpp"
#include "ddrun/remote/bootstrap.hpp"
#include "ddrun/remote/head.hpp"
#include "ddrun/remote/relay.hpp"
#include "ddrun/remote/srun.hpp"
#include "ddrun/rendezvous/secret.hpp"
#include "ddrun/worker_env/program_path.hpp"

// Agents on other machines: the head of --hosts on the user's machine, `ddrun relay` on each host, and srun.

namespace ddrun {

namespace {

Result<std::vector<cluster::Host>> hosts_of(const RemoteSpec& remote) {
  if (!remote.hostfile) {
    auto hosts = cluster::parse_hosts(remote.hosts);
    if (!hosts) return fail(hosts.error().code, concat("--hosts: ", hosts.error().message));
    return hosts;
  }
  errno = 0;
  std::ifstream file(*remote.hostfile);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    return fail_errno(Errc::invalid_argument, concat("--hostfile=", *remote.hostfile), errno != 0 ? errno : EIO);
  }
  return cluster::parse_hostfile(text, *remote.hostfile);
}

Result<std::vector<std::pair<std::string, std::string>>> exported_of(const RemoteSpec& remote) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (const std::string& one : remote.exported) {
    const auto equals = one.find('=');
    const std::string name = one.substr(0, equals);
    if (name == "DDRUN_SECRET") return fail(Errc::invalid_argument, "-x DDRUN_SECRET: workers do not get it");
    const char* value = ::getenv(name.c_str());
    if (equals != std::string::npos) variables.emplace_back(name, one.substr(equals + 1));
    else if (value != nullptr) variables.emplace_back(name, value);
    else say(Level::warning, concat("-x ", name, ": there is no such variable here"));
  }
  return variables;
}

/// By an unambiguous name. "user@localhost" may be another user and is left to ssh.
bool is_this_machine(std::string_view name) {
  const std::string own = cluster::this_machine().host_name;
  return name == "localhost" || name == "127.0.0.1" || name == "::1" || names_same_host(name, own);
}

Result<remote::HeadOptions> head_options(const cli::Launch& launch) {
  const LaunchSpec& spec = launch.spec;
  const RemoteSpec& remote = spec.remote;
  remote::HeadOptions options;
  auto hosts = TRY(hosts_of(remote));
  auto variables = TRY(exported_of(remote));
  auto secret = rendezvous::new_secret_text();
  auto random = rendezvous::new_secret_text();
  if (!secret || !random) return tl::unexpected((secret ? random : secret).error());
  std::array<char, PATH_MAX> directory{};
  options.job.directory_needed = !spec.first().chdir || !spec.first().chdir->starts_with('/');
  const bool directory_known = ::getcwd(directory.data(), directory.size()) != nullptr;
  if (!directory_known && options.job.directory_needed) {
    return fail_errno(Errc::unavailable, "the current directory cannot be read (was it removed?)", errno);
  }

  // All hosts, unless --nnodes gives a minimum, or a maximum that leaves spares.
  const int count = static_cast<int>(hosts.size());
  const bool nodes_given = launch.given.contains("nnodes");
  if (nodes_given && spec.rendezvous.min_nodes > count) {
    return fail(Errc::invalid_argument, concat("--nnodes wants at least ", spec.rendezvous.min_nodes, " machines, but ",
                                               count == 1 ? "only one is" : concat("only ", count, " are"), " named"));
  }
  options.min_nodes = nodes_given ? spec.rendezvous.min_nodes : count;
  options.job.min_nodes = options.min_nodes;
  options.last_call = spec.rendezvous.last_call;
  options.job.max_nodes = nodes_given ? std::min(spec.rendezvous.max_nodes, count) : count;

  if (launch.given.contains("nproc-per-node") && spec.first().nproc.kind == NprocSpec::Kind::count) {
    const std::span first(hosts.data(), static_cast<std::size_t>(options.job.max_nodes));
    if (const std::string differs = cluster::compare_count(first, spec.first().nproc.count); !differs.empty())
      say(Level::warning, differs);
  }
  for (const cluster::Host& host : hosts) {
    const bool is_local = !launch.given.contains("ssh") && is_this_machine(host.name);
    options.hosts.push_back({host.name, is_local, host.slots});
  }
  options.coordinator_port = static_cast<std::uint16_t>(spec.rendezvous.master_port.value_or(0));
  const BuildInfo& build = build_info();
  options.ssh = remote.ssh;
  options.build_id = remote::build_id(build.version, build.commit);
  options.program = own_program();
  if (options.program.empty()) options.program = "ddrun";
  options.portable = std::string_view(build.link) == "static";
  options.stdin_ = spec.stdin_;
  options.timeout = spec.timeout;
  options.ending_signals = spec.stop.ending_signals;
  options.start_limit = std::min(spec.rendezvous.join_timeout, options.start_limit);
  options.job.args = launch.forwarded_args;
  options.job.directory = directory_known ? directory.data() : "/";
  options.job.started_as = worker_env::start_path(spec.started_as);
  options.job.variables = std::move(variables);
  options.job.job_id =
      spec.rendezvous.id == "none" || spec.rendezvous.id.empty() ? random->substr(0, 16) : spec.rendezvous.id;
  options.secret = std::move(*secret);
  options.job.color = launch.messages.color;
  options.log = spec.log;
  const logs::RankConsoleOptions shown(spec.log, ::isatty(STDOUT_FILENO) == 1 || ::isatty(STDERR_FILENO) == 1);
  options.job.all_progress = shown.fold || shown.color || shown.progress == Progress::rows;
  options.job.ending_signal = preferred_ending_signal(spec.stop.ending_signals);
  options.job.grace = spec.stop.grace;
  return options;
}

/// Opens the files of the whole job, which are on the user's machine.
Result<void> open_files(const LaunchSpec& spec, agent::CiService ci, agent::EventsFile& events,
                        remote::HeadOptions& options) {
  if (spec.events_file) {
    TRY(agent::EventsFile::check(*spec.events_file));
    TRY(events.open(*spec.events_file));
    options.on_events = [&events](std::string_view lines) { events.write(lines); };
  }
  const auto lost = std::make_shared<std::pair<std::uint64_t, std::string>>();
  options.on_lost_output = [&events, lost](std::uint64_t bytes, const std::string& why) {
    *lost = {bytes, why};
    events.write_line(agent::output_lost_event(cluster::this_machine().host_name, bytes));
  };
  const bool in_github = ci == agent::CiService::github;
  if (spec.report_files.empty() && !in_github) return {};
  options.on_report = [in_github, files = spec.report_files, lost](const std::string& sent) {
    const std::string json = lost->first == 0 ? sent : agent::add_lost_output(sent, lost->first, lost->second);
    if (in_github) agent::report_to_github(json);
    Result<void> all;
    for (const std::string& file : files) {
      if (auto written = agent::write_report(file, json); !written) all = std::move(written);
    }
    return all;
  };
  for (const std::string& file : spec.report_files) TRY(agent::check_report_file(file));
  return {};
}

std::optional<int> run_on_hosts(const StartRequest& request, process::AgentContext& context) {
  const cli::Launch& launch = request.launch;
  if (!launch.spec.remote.asked_for()) return std::nullopt;
  auto options = head_options(launch);
  if (!options) return say_failure(options.error());
  options->worker_program = launch.spec.first().name;
  // The coordinator's host folds its output; the summary is written here and needs the report.
  const agent::CiService ci = agent::detect_ci(launch.ci, Environment(environ));
  auto& args = options->job.args;
  args.insert(args.begin(), concat("--ci=", agent::ci_name(ci)));
  if (ci == agent::CiService::github && launch.spec.report_files.empty())
    args.insert(args.begin(), "--report=/dev/null");
  agent::EventsFile events;
  if (auto ready = launch.spec.dry_run ? Result<void>() : open_files(launch.spec, ci, events, *options); !ready)
    return say_failure(ready.error());
  if (!launch.spec.dry_run) return remote::run_head(std::move(*options), context);
  const std::string text = remote::describe_head(*options);
  return write_shared(STDOUT_FILENO, text) ? 0 : exit_codes::launcher_failed;
}

// ---- srun

/// Ensures that the agents have a secret: the user's, or a new one. Returns 0 or the exit code.
int share_secret(const RendezvousSpec& spec) {
  if (spec.insecure) return 0;
  auto found = rendezvous::find_secret(spec, variable);
  if (!found) return say_failure(found.error());
  if (*found) return 0;
  auto made = rendezvous::new_secret_text();
  if (!made) return say_failure(made.error(), exit_codes::launcher_failed);
  ::setenv("DDRUN_SECRET", made->c_str(), 1);
  rendezvous::wipe(*made);
  return 0;
}

/// From the script of a Slurm job: ddrun with the same arguments on each node.
std::optional<int> run_by_srun(const StartRequest& request, remote::SrunStep* step, process::AgentContext& context) {
  const LaunchSpec& spec = request.launch.spec;
  if (!request.script || spec.dry_run) return std::nullopt;
  if (variable("DDRUN_STARTED_BY_SRUN")) {
    say_error(
        "an agent that srun started takes itself for the script of the job; give --env-detect=slurm, or --nnodes, "
        "--node-rank and --rdzv-endpoint");
    return exit_codes::launcher_failed;
  }
  if (const int code = share_secret(spec.rendezvous); code != 0) return code;
  const remote::SrunOptions options{request.arguments, worker_env::start_path(spec.started_as), request.script->nodes,
                                    request.script->in_step};
  const auto code = remote::run_srun(spec, options, step, context);
  return code ? *code : say_failure(code.error());
}

}  // namespace

int preferred_ending_signal(const std::set<int>& ending) {
  for (const int signal : {SIGTERM, SIGHUP, SIGINT}) {
    if (ending.count(signal) != 0) return signal;
  }
  return ending.empty() ? SIGKILL : *ending.begin();
}

std::array<AgentStarter, 2> make_agent_starters() {
  remote::SrunStep* const step = remote::share_srun_step();
  const auto by_srun = [step](const StartRequest& request, process::AgentContext& context) {
    return run_by_srun(request, step, context);
  };
  return {{{run_on_hosts, [] {}}, {by_srun, [step] { remote::stop_orphaned_step(step); }}}};
}

// ---- ddrun relay

namespace {

Result<void> change_directory(const remote::Bootstrap& part) {
  if (::chdir(part.directory.c_str()) == 0 || !part.directory_needed) return {};
  return fail_errno(
      Errc::unavailable,
      concat("cannot go to ", shell_quote(part.directory), ", where you are on your own machine (see --chdir)"), errno);
}

/// The launch for this host: the head's command line and its part of the job.
Result<cli::Launch> launch_of(const remote::Bootstrap& part, const remote::HeadConnection& head,
                              const cli::VersionInfo& version) {
  auto parsed = cli::parse_launch(part.args, {Environment(), version});
  auto* launch = std::get_if<cli::Launch>(&parsed);
  if (launch == nullptr) {
    const auto* text = std::get_if<cli::PrintAndExit>(&parsed);
    return fail(Errc::protocol, concat("cannot read its part of the job: ", text != nullptr ? text->text : ""));
  }
  LaunchSpec& spec = launch->spec;
  if (!launch->given.contains("nproc-per-node") && part.slots > 0)
    spec.first().nproc = {NprocSpec::Kind::count, part.slots};
  if (!part.reads_input) spec.stdin_.kind = StdinSpec::Kind::none;
  spec.started_as = part.started_as;
  RendezvousSpec& rendezvous = spec.rendezvous;
  rendezvous.id = part.job_id;
  rendezvous.min_nodes = part.min_nodes;
  rendezvous.max_nodes = part.max_nodes;
  rendezvous.is_host = part.runs_coordinator;
  rendezvous.first_round_nodes = part.first_round_nodes;
  rendezvous.coordinators = part.coordinators;
  // If all hosts are needed, node ranks follow the order of --hosts.
  if (part.min_nodes == part.node_count) rendezvous.node_rank = part.node_rank;
  if (part.node_count > 1 && spec.log.label == Label::automatic && spec.log.line_prefix_template.empty()) {
    spec.log.label = Label::host;
  }
  // The coordinator's host sends the content of both files to the head; the other hosts only need to know whether a
  // report is wanted.
  if (!spec.report_files.empty()) spec.report_files = {part.runs_coordinator ? head.report_path() : "/dev/null"};
  if (!part.runs_coordinator) launch->ci = "none";
  if (!part.runs_coordinator) spec.events_file.reset();
  else if (spec.events_file) spec.events_file = head.events_path();
  launch->messages.color = part.color;
  spec.log.frames = head.frames();
  if (part.all_progress) spec.log.progress = Progress::all;
  else if (spec.log.progress == Progress::rows) spec.log.progress = Progress::last;
  // Messages about the whole job are shown by the coordinator's host only.
  if (!part.runs_coordinator && launch->messages.shown == Level::notice) launch->messages.shown = Level::warning;
  return std::move(*launch);
}

int run_part(const remote::Bootstrap& part, const remote::HeadConnection& head, const cli::VersionInfo& version,
             const RunLaunch& run, process::AgentContext& context) {
  auto launch = launch_of(part, head, version);
  if (!launch) return say_failure(launch.error(), exit_codes::launcher_failed);
  set_message_settings(launch->messages);
  if (auto changed = change_directory(part); !changed) return say_failure(changed.error(), exit_codes::launcher_failed);
  if (part.slots == 0) note_unused_gpus(*launch);
  return run(*launch, context, part, head);
}

}  // namespace

bool is_relay_command(std::string_view name) { return name == "relay" || name == "agent"; }

int serve_host(int argc, char** argv, const cli::VersionInfo& version, const RunLaunch& run) {
  const BuildInfo& build = build_info();
  remote::RelayOptions options;
  options.build_id = remote::build_id(build.version, build.commit);
  bool unknown_argument = false;
  for (int i = 2; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with("--check=")) return argument.substr(8) == options.build_id ? 0 : 1;
    if (argument == "--private") options.private_copy = true;
    else unknown_argument = true;
  }
  // Started by ssh or the head, stdin is a pipe or a socket.
  struct stat input {};
  if (unknown_argument || ::fstat(STDIN_FILENO, &input) != 0 ||
      (!S_ISFIFO(input.st_mode) && !S_ISSOCK(input.st_mode))) {
    say_error(concat("'ddrun ", argv[1],
                     "' is what --hosts starts on other machines; for a program of that name write: ddrun -- ",
                     argv[1]));
    return exit_codes::usage;
  }
  return remote::run_relay(options, [&](const remote::Bootstrap& part, const remote::HeadConnection& head) {
    for (const auto& [name, value] : part.variables) ::setenv(name.c_str(), value.c_str(), 1);
    const auto agent = [&](process::AgentContext& context) { return run_part(part, head, version, run, context); };
    return process::run_guarded(argc, argv, agent).code;
  });
}

}  // namespace ddrun
