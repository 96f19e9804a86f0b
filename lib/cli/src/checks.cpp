#include "settings.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ddrun/base/address.hpp"
#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"

namespace ddrun::cli {

namespace {

using Warnings = std::vector<std::string>;

/// Whether the option was given on the command line: variables and files are shared by many jobs, so they cause no
/// warnings.
bool is_typed(const Settings& settings, std::string_view name) {
  return settings.of(name).source >= Source::command_line && settings.is_on(name);
}

Result<void> check_restart(const ParsedOptions& parsed, const Settings& settings, Warnings& warnings) {
  const RestartPolicy& policy = parsed.spec.restart;
  CodeSet both;
  std::set_intersection(policy.success_on.begin(), policy.success_on.end(), policy.no_restart_on.begin(),
                        policy.no_restart_on.end(), std::inserter(both, both.begin()));
  if (!both.empty()) {
    return fail(Errc::invalid_argument,
                concat("exit code ", *both.begin(),
                       " is in --success-on and in --no-restart-on; a code is either a success or a failure"));
  }
  if (parsed.spec.commands.before.empty() && is_typed(settings, "before-each")) {
    warnings.emplace_back("--before-each has no effect without --before");
  }
  if (policy.max_restarts == 0) {
    for (const std::string_view name : {"restart-backoff", "restart-window", "same-cause", "no-restart-on"}) {
      if (is_typed(settings, name)) warnings.push_back(concat("--", name, " has no effect without --max-restarts"));
    }
  }
  return {};
}

Result<void> check_ranks(const ParsedOptions& parsed, const Settings& settings, Warnings& warnings) {
  if (parsed.program.nproc.kind != NprocSpec::Kind::count) return {};
  const int count = parsed.program.nproc.count;
  const auto warn = [&](std::string_view name, int rank) {
    if (rank >= count && is_typed(settings, name)) {
      warnings.push_back(concat("--", name, " names local rank ", rank, ", but there ",
                                count == 1 ? "is only local rank 0" : concat("are only 0 to ", count - 1)));
    }
  };
  const StreamChoice& streams = parsed.program.streams;
  if (!streams.redirects.by_local_rank.empty()) warn("redirects", streams.redirects.by_local_rank.rbegin()->first);
  if (!streams.tee.by_local_rank.empty()) warn("tee", streams.tee.by_local_rank.rbegin()->first);
  if (streams.local_ranks_filter) warn("local-ranks-filter", *streams.local_ranks_filter->rbegin());
  const StdinSpec& input = parsed.spec.stdin_;
  if (input.kind == StdinSpec::Kind::rank && input.rank >= count && !parsed.program.is_service) {
    return fail(Errc::invalid_argument,
                concat("--stdin=", input.rank, ": there is no such rank, the highest is ", count - 1));
  }
  return {};
}

Result<void> check_remote(const ParsedOptions& parsed, const Settings& settings, Warnings& warnings) {
  const RemoteSpec& remote = parsed.spec.remote;
  if (!remote.asked_for()) {
    if (is_typed(settings, "ssh")) warnings.emplace_back("--ssh has no effect without --hosts or --hostfile");
    return {};
  }
  for (const std::string_view name :
       {"standalone", "node-rank", "rdzv-endpoint", "rdzv-lease", "local-addr", "master-addr"}) {
    if (!is_typed(settings, name)) continue;
    return fail(Errc::invalid_argument, concat("--", name,
                                               " cannot be given with --hosts: ddrun tells every host what "
                                               "it has to know"));
  }
  if (is_typed(settings, "rdzv-backend") && parsed.spec.rendezvous.is_etcd()) {
    return fail(
        Errc::invalid_argument,
        "--rdzv-backend=etcd cannot be given with --hosts, where the first host runs the coordinator and no other "
        "one takes over; for that start ddrun with it on each machine");
  }
  return {};
}

Result<void> check_service(const ParsedOptions& parsed, const Settings& settings, Warnings& warnings) {
  const ProgramSpec& program = parsed.program;
  if (program.ready.empty()) {
    if (is_typed(settings, "ready-timeout")) warnings.emplace_back("--ready-timeout has no effect without --ready");
    return {};
  }
  if (!program.is_service || program.port == 0) {
    return bad(concat("--ready=", program.ready, " is of a --service with a --port; add both"));
  }
  if (!program.has_world()) return {};
  return bad(concat("--ready and --world=", program.world,
                    ": the service would wait for its world, whose other programs wait for it; leave one of them out"));
}

void check_output(const ParsedOptions& parsed, const Settings& settings, Warnings& warnings) {
  if (parsed.spec.log.fold == When::always && !parsed.spec.log.labels_ranks()) {
    warnings.emplace_back("--fold=always has no effect without the label of the rank (--label=rank or host)");
  }
  if (parsed.spec.log.dir != "/dev/null") return;
  for (const std::string_view name : {"duplicate-stdout-filters", "duplicate-stderr-filters"}) {
    if (is_typed(settings, name)) warnings.push_back(concat("--", name, " has no effect with --log-dir=/dev/null"));
  }
}

/// torchrun's c10d supports a file as rendezvous. On one machine it is not needed; several machines need a port.
Result<void> resolve_rendezvous_file(RendezvousSpec& rendezvous, const Settings& settings) {
  if (rendezvous.backend != "c10d" || rendezvous.conf_value("store_type") != "file") {
    if (rendezvous.endpoint.find('/') == std::string::npos) return {};
    const auto wrong = parse_endpoint(rendezvous.endpoint);
    return fail(Errc::invalid_argument, concat(settings.of("rdzv-endpoint").prefix, ": ", wrong.error().message));
  }
  if (rendezvous.several_machines()) {
    return fail(Errc::invalid_argument,
                "--rdzv-conf: store_type=file: several machines meet at a port of one of them, not in a file; write "
                "--rdzv-endpoint=HOST:PORT with its name or address, and leave out store_type");
  }
  rendezvous.endpoint.clear();
  return {};
}

/// Keys of --rdzv-conf that cause no warning, also those without effect in ddrun.
constexpr std::string_view known_keys =
    "timeout join_timeout last_call_timeout keep_alive_interval keep_alive_max_attempt is_host rank close_timeout "
    "heartbeat "
    "heartbeat_timeout read_timeout store_type use_libuv protocol cacert cert key user port";

Result<void> wrong_value(std::string_view key, std::string_view text, const Error& error) {
  return fail(Errc::invalid_argument, concat("--rdzv-conf: ", key, "=", text, ": ", error.message));
}

/// Applies torchrun's keys of --rdzv-conf; ddrun's options take precedence. Fails with `invalid_argument` for an
/// invalid value; an unknown key causes a warning.
Result<void> apply_rendezvous_conf(RendezvousSpec& rendezvous, const Settings& settings,
                                   std::vector<std::string>& warnings) {
  const bool is_static = rendezvous.backend == "static";
  const auto given = [&](std::string_view option) { return settings.is_on(option); };
  const auto time = [&](const std::string& key, std::string_view option, Milliseconds& to) -> Result<void> {
    const auto text = rendezvous.conf_value(key);
    if (!text || given(option)) return {};
    const auto parsed = parse_positive_time(*text);
    if (!parsed) return wrong_value(key, *text, parsed.error());
    to = *parsed;
    return {};
  };
  // As in torchrun: `timeout` for a static rendezvous, `join_timeout` for a dynamic one.
  TRY(time(is_static ? "timeout" : "join_timeout", "join-timeout", rendezvous.join_timeout));
  TRY(time("last_call_timeout", "last-call", rendezvous.last_call));
  TRY(time("keep_alive_interval", "heartbeat-interval", rendezvous.heartbeat_interval));
  if (const auto text = rendezvous.conf_value("keep_alive_max_attempt"); text && !given("heartbeat-misses")) {
    const auto parsed = parse_int(*text, 1, 10'000);
    if (!parsed) return wrong_value("keep_alive_max_attempt", *text, parsed.error());
    rendezvous.heartbeat_misses = *parsed;
  }
  if (const auto text = rendezvous.conf_value("rank"); text && is_static && !rendezvous.node_rank) {
    const auto parsed = parse_int(*text, 0, 1'000'000);
    if (!parsed) return wrong_value("rank", *text, parsed.error());
    rendezvous.node_rank = *parsed;
  }
  if (const auto text = rendezvous.conf_value("is_host"); text && !rendezvous.is_host) {
    const auto parsed = parse_bool(*text);
    if (!parsed) return wrong_value("is_host", *text, parsed.error());
    rendezvous.is_host = *parsed;
  }
  if (settings.of("rdzv-conf").source != Source::command_line) return {};
  const std::vector<std::string> known = split(known_keys, ' ');
  for (const auto& [key, value] : rendezvous.conf) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string near = nearest(key, known);
    warnings.push_back(concat("--rdzv-conf: ddrun knows no key '", key, "'",
                              near.empty() ? std::string() : concat("; did you mean '", near, "'?")));
  }
  return {};
}

/// The coordinator's machine is elected by etcd or --rdzv-lease; without either it is given by --rdzv-endpoint.
Result<void> check_lease(RendezvousSpec& rendezvous, const Settings& settings, Warnings& warnings) {
  const auto conf = [&](const std::string& key) { return rendezvous.conf_value(key).value_or(""); };
  if (!rendezvous.has_lease()) {
    if (!rendezvous.standalone && rendezvous.endpoint.find(',') != std::string::npos) {
      return fail(Errc::invalid_argument,
                  concat(settings.of("rdzv-endpoint").prefix,
                         ": only etcd has several endpoints; name one machine, or add --rdzv-backend=etcd (these are "
                         "its members) or --rdzv-lease=COMMAND (a program says which machine runs the coordinator)"));
    }
    if (is_typed(settings, "lease-ttl")) {
      warnings.emplace_back("--lease-ttl has no effect without --rdzv-backend=etcd or --rdzv-lease");
    }
    return {};
  }
  if (rendezvous.is_etcd() && !rendezvous.lease.empty()) {
    return fail(Errc::invalid_argument,
                "--rdzv-backend=etcd and --rdzv-lease both say who leads; leave one of them out");
  }
  if (!rendezvous.is_etcd() && is_typed(settings, "rdzv-endpoint")) {
    warnings.emplace_back("--rdzv-endpoint has no effect with --rdzv-lease, which says where the coordinator is");
  }
  if (const std::string protocol = conf("protocol"); !protocol.empty() && protocol != "http" && protocol != "https") {
    return fail(Errc::invalid_argument, concat("--rdzv-conf: protocol=", protocol, ": is not http or https"));
  }
  if (const std::string port = conf("port"); !port.empty()) {
    const auto parsed = parse_int(port, 1, 65535);
    if (!parsed) return wrong_value("port", port, parsed.error());
    rendezvous.coordinator_port = *parsed;
  }
  return {};
}

/// A link-local IPv6 address needs an interface of the machine that uses it.
Result<void> check_link_local(const RendezvousSpec& rendezvous, const Settings& settings) {
  const auto is_link_local = [](const std::string& text) {
    const auto address = IpAddress::parse(text);
    return address && address->is_link_local();
  };
  const auto wrong = [&](std::string_view name, std::string_view why) {
    return fail(Errc::invalid_argument, concat(settings.of(name).prefix, ": a link-local address ", why));
  };
  if (rendezvous.local_addr && is_link_local(*rendezvous.local_addr)) {
    return wrong("local-addr", "leads nowhere from other machines; give another one of this machine");
  }
  const auto needs_zone = [&](const std::string& host) {
    return is_link_local(host) && host.find('%') == std::string::npos;
  };
  constexpr std::string_view how = "needs the interface that leads to it: fe80::1%eth0";
  for (const std::string& one : split(rendezvous.endpoint, ',')) {
    const auto endpoint = split_host_port(one);
    if (endpoint && needs_zone(endpoint->host)) return wrong("rdzv-endpoint", how);
  }
  if (rendezvous.master_addr && needs_zone(*rendezvous.master_addr)) return wrong("master-addr", how);
  return {};
}

Result<void> check_rendezvous(ParsedOptions& parsed, const Settings& settings, Warnings& warnings) {
  RendezvousSpec& rendezvous = parsed.spec.rendezvous;
  if (rendezvous.standalone) {
    if (is_typed(settings, "standalone") && is_typed(settings, "nnodes") && rendezvous.min_nodes > 1) {
      return fail(Errc::invalid_argument, concat("--standalone is for this machine alone, but --nnodes wants ",
                                                 rendezvous.min_nodes, "; leave one of them out"));
    }
    for (const std::string_view name : {"rdzv-backend", "rdzv-endpoint", "rdzv-id", "master-addr", "master-port"}) {
      if (is_typed(settings, name)) warnings.push_back(concat("--standalone replaces --", name));
    }
  }
  TRY(resolve_rendezvous_file(rendezvous, settings));
  TRY(check_lease(rendezvous, settings, warnings));
  const bool single_node = !rendezvous.several_machines();
  // torchrun ignores it but with static: scripts give one number to all machines.
  rendezvous.node_rank_is_wish = rendezvous.node_rank && rendezvous.backend != "static";
  if (single_node && rendezvous.node_rank.value_or(0) != 0 && is_typed(settings, "node-rank")) {
    warnings.push_back(concat("--node-rank=", *rendezvous.node_rank, " is ignored: with one machine its rank is 0"));
  }
  if (!single_node && rendezvous.node_rank.value_or(0) >= rendezvous.max_nodes) {
    const std::string range = concat("--node-rank=", *rendezvous.node_rank, " with --nnodes=", rendezvous.max_nodes,
                                     ": node ranks are 0 to ", rendezvous.max_nodes - 1);
    if (!rendezvous.node_rank_is_wish) return fail(Errc::invalid_argument, range);
    warnings.push_back(range + "; it is ignored, and this machine gets a free one");
    rendezvous.node_rank.reset();
    rendezvous.node_rank_is_wish = false;
  }
  if (!single_node) TRY(check_link_local(rendezvous, settings));
  return apply_rendezvous_conf(rendezvous, settings, warnings);
}

/// Maps torchrun's --numa-binding to the nearest --bind mode.
void translate_numa_binding(ParsedOptions& parsed, Settings& settings, Warnings& warnings) {
  const std::string how = std::exchange(parsed.numa_binding, "");
  if (how.empty()) return;
  const bool whole_node = how == "node" || how == "socket";
  const std::string bind = whole_node ? "numa" : "cores";
  if ((how == "socket" || how == "core-complex") && is_typed(settings, "numa-binding")) {
    warnings.push_back(concat("--numa-binding=", how, " is done as --bind=", bind));
  }
  parsed.program.bind = whole_node ? BindMode::numa : BindMode::cores;
  settings.move("numa-binding", "bind", bind);
}

}  // namespace

void apply_exports(LaunchSpec& spec, const Environment& environment, Warnings& warnings) {
  // Backwards: the last -x of a name counts, and --env takes precedence.
  for (auto it = spec.remote.exported.rbegin(); it != spec.remote.exported.rend(); ++it) {
    const std::size_t equals = it->find('=');
    const std::string name = it->substr(0, equals);
    if (equals == std::string::npos) {
      if (!environment.has(name)) warnings.push_back(concat("-x ", name, ": there is no such variable here"));
      continue;
    }
    for (ProgramSpec& program : spec.programs) {
      auto& set = program.env;
      const bool already_set = std::any_of(set.begin(), set.end(), [&](const auto& one) { return one.first == name; });
      if (!already_set) set.emplace_back(name, it->substr(equals + 1));
    }
  }
}

Result<void> resolve_exclusions(Settings& settings) {
  constexpr std::pair<std::string_view, std::string_view> pairs[] = {{"verbose", "quiet"},
                                                                     {"hosts", "hostfile"},
                                                                     {"secret-file", "insecure"},
                                                                     {"label", "log-line-prefix-template"},
                                                                     {"bind", "numa-binding"}};
  for (const auto& [one, other] : pairs) TRY(settings.exclude(one, other));
  if (!settings.is_on("run-path")) return settings.exclude("no-python", "module");
  return {};
}

Result<void> check_start_method(const ParsedOptions& parsed, const Settings& settings, Warnings& warnings) {
  if (!is_typed(settings, "start-method")) return {};
  const std::string& method = parsed.start_method;
  const bool anew = method == "exec" || method == "spawn";
  if (!parsed.program.preload.empty()) {
    if (method == "forkserver") return {};
    return fail(
        Errc::invalid_argument,
        concat("--start-method=", method, " and --preload, whose workers are forks of a server, cannot both be given"));
  }
  if (method == "forkserver") {
    warnings.emplace_back(
        "--start-method=forkserver has no effect without --preload=MODULES, which the server imports");
  } else if (!anew) {
    warnings.emplace_back(
        "--start-method=fork has no effect: a fork of a process that computes lacks its threads and GPUs");
  }
  return {};
}

Result<void> check_combinations(ParsedOptions& parsed, Settings& settings, Warnings& warnings) {
  TRY(check_restart(parsed, settings, warnings));
  TRY(check_ranks(parsed, settings, warnings));
  TRY(check_remote(parsed, settings, warnings));
  TRY(check_service(parsed, settings, warnings));
  check_output(parsed, settings, warnings);
  TRY(check_rendezvous(parsed, settings, warnings));
  translate_numa_binding(parsed, settings, warnings);
  TRY(check_start_method(parsed, settings, warnings));
  if (is_typed(settings, "monitor-interval")) {
    warnings.emplace_back("--monitor-interval has no effect: ddrun is notified at once when a worker ends");
  }
  return {};
}

void choose_program_kind(ParsedOptions& parsed, const Settings& settings, Warnings& warnings) {
  ProgramSpec& program = parsed.program;
  if (parsed.run_path) {
    program.kind = ProgramKind::python_function;
    for (const std::string_view name : {"module", "no-python"}) {
      if (is_typed(settings, name)) warnings.push_back(concat("--run-path wins over --", name));
    }
  } else if (parsed.module) {
    program.kind = ProgramKind::python_module;
  } else if (!parsed.no_python && (program.name.ends_with(".py") || program.name.ends_with(".pyz"))) {
    program.kind = ProgramKind::python_script;
  } else {
    program.kind = ProgramKind::executable;
    program.no_python = parsed.no_python;
  }
}

void drop_separator(ParsedOptions& parsed) {
  ProgramSpec& program = parsed.program;
  const bool as_torchrun = program.kind != ProgramKind::executable || parsed.no_python;
  if (as_torchrun && !program.args.empty() && program.args.front() == "--") program.args.erase(program.args.begin());
}

}  // namespace ddrun::cli
