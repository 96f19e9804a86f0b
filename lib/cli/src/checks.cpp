#include "checks.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ddrun/base/text.hpp"
#include "rendezvous_conf.hpp"
#include "values.hpp"

namespace ddrun::cli {

namespace {

using Warnings = std::vector<std::string>;

/// Variables and files are often set once for many jobs: only what was typed now is worth a warning.
bool typed(const Settings& settings, std::string_view name) {
  return settings.of(name).source == Source::command_line && settings.is_on(name);
}

Result<void> check_restart(const Draft& draft, const Settings& settings, Warnings& warnings) {
  const RestartPolicy& policy = draft.spec.restart;
  CodeSet both;
  std::set_intersection(policy.success_on.begin(), policy.success_on.end(), policy.no_restart_on.begin(),
                        policy.no_restart_on.end(), std::inserter(both, both.begin()));
  if (!both.empty()) {
    return fail(Errc::invalid_argument,
                concat("exit code ", *both.begin(),
                       " is in --success-on and in --no-restart-on; a code is either a success or a failure"));
  }
  if (policy.max_restarts == 0) {
    for (const std::string_view name : {"restart-backoff", "restart-window", "no-restart-on"}) {
      if (typed(settings, name)) warnings.push_back(concat("--", name, " has no effect without --max-restarts"));
    }
  }
  return {};
}

Result<void> check_ranks(const Draft& draft, const Settings& settings, Warnings& warnings) {
  if (draft.spec.nproc.kind != NprocSpec::Kind::count) return {};
  const int count = draft.spec.nproc.count;
  const auto warn = [&](std::string_view name, int rank) {
    if (rank >= count && typed(settings, name)) {
      warnings.push_back(concat("--", name, " names local rank ", rank, ", but there ",
                                count == 1 ? "is only local rank 0" : concat("are only 0 to ", count - 1)));
    }
  };
  const LogSpec& log = draft.spec.log;
  if (!log.redirects.by_local_rank.empty()) warn("redirects", log.redirects.by_local_rank.rbegin()->first);
  if (!log.tee.by_local_rank.empty()) warn("tee", log.tee.by_local_rank.rbegin()->first);
  if (log.local_ranks_filter) warn("local-ranks-filter", *log.local_ranks_filter->rbegin());
  const StdinSpec& input = draft.spec.stdin_;
  if (input.kind == StdinSpec::Kind::rank && input.rank >= count) {
    return fail(Errc::invalid_argument,
                concat("--stdin=", input.rank, ": there is no such rank, the highest is ", count - 1));
  }
  return {};
}

Result<void> check_remote(const Draft& draft, const Settings& settings, Warnings& warnings) {
  const RemoteSpec& remote = draft.spec.remote;
  if (!remote.asked_for()) {
    if (typed(settings, "ssh")) warnings.emplace_back("--ssh has no effect without --hosts or --hostfile");
    return {};
  }
  for (const std::string_view name : {"standalone", "node-rank", "rdzv-endpoint", "local-addr", "master-addr"}) {
    if (!typed(settings, name)) continue;
    return fail(Errc::invalid_argument, concat("--", name,
                                               " cannot be given with --hosts: ddrun tells every host what "
                                               "it has to know"));
  }
  return {};
}

void check_filters(const Draft& draft, const Settings& settings, Warnings& warnings) {
  if (draft.spec.log.dir != "/dev/null") return;
  for (const std::string_view name : {"duplicate-stdout-filters", "duplicate-stderr-filters"}) {
    if (typed(settings, name)) warnings.push_back(concat("--", name, " has no effect with --log-dir=/dev/null"));
  }
}

/// torchrun's c10d can meet in a file. One machine has nobody to meet there; several need a port.
Result<void> settle_meeting_file(RendezvousSpec& meeting, const Settings& settings) {
  const auto store = meeting.conf.find("store_type");
  if (meeting.backend != "c10d" || store == meeting.conf.end() || store->second != "file") {
    if (meeting.endpoint.find('/') == std::string::npos) return {};
    const auto wrong = parse_endpoint(meeting.endpoint);
    return fail(Errc::invalid_argument, concat(settings.of("rdzv-endpoint").prefix, ": ", wrong.error().message));
  }
  if (meeting.several_machines()) {
    return fail(Errc::invalid_argument,
                "--rdzv-conf: store_type=file: several machines meet at a port of one of them, not in a file; write "
                "--rdzv-endpoint=HOST:PORT with its name or address, and leave out store_type");
  }
  meeting.endpoint.clear();
  return {};
}

Result<void> check_rendezvous(Draft& draft, const Settings& settings, Warnings& warnings) {
  RendezvousSpec& meeting = draft.spec.rendezvous;
  if (meeting.standalone) {
    if (typed(settings, "standalone") && typed(settings, "nnodes") && meeting.min_nodes > 1) {
      return fail(Errc::invalid_argument, concat("--standalone is for this machine alone, but --nnodes wants ",
                                                 meeting.min_nodes, "; leave one of them out"));
    }
    for (const std::string_view name : {"rdzv-backend", "rdzv-endpoint", "rdzv-id", "master-addr", "master-port"}) {
      if (typed(settings, name)) warnings.push_back(concat("--standalone replaces --", name));
    }
  }
  if (auto settled = settle_meeting_file(meeting, settings); !settled) return settled;
  const bool alone = !meeting.several_machines();
  if (alone && meeting.node_rank.value_or(0) != 0 && typed(settings, "node-rank")) {
    warnings.push_back(concat("--node-rank=", *meeting.node_rank, " is ignored: with one machine its rank is 0"));
  }
  if (!alone && meeting.node_rank && meeting.min_nodes == meeting.max_nodes &&
      *meeting.node_rank >= meeting.max_nodes) {
    return fail(Errc::invalid_argument, concat("--node-rank=", *meeting.node_rank, " with --nnodes=", meeting.max_nodes,
                                               ": node ranks are 0 to ", meeting.max_nodes - 1));
  }
  return apply_rendezvous_conf(meeting, settings, warnings);
}

/// torchrun's names for binding, with the nearest that ddrun has.
void translate_numa_binding(Draft& draft, Settings& settings, Warnings& warnings) {
  const std::string how = std::exchange(draft.numa_binding, "");
  if (how.empty()) return;
  const bool whole_node = how == "node" || how == "socket";
  const std::string ours = whole_node ? "numa" : "cores";
  if ((how == "socket" || how == "core-complex") && typed(settings, "numa-binding")) {
    warnings.push_back(concat("--numa-binding=", how, " is done as --bind=", ours));
  }
  draft.spec.bind = whole_node ? BindMode::numa : BindMode::cores;
  settings.move("numa-binding", "bind", ours);
}

}  // namespace

void export_here(LaunchSpec& spec, const Environment& environment, Warnings& warnings) {
  // From the last one on, as the last one counts, and what --env says before it.
  for (auto it = spec.remote.exported.rbegin(); it != spec.remote.exported.rend(); ++it) {
    const std::size_t equals = it->find('=');
    const std::string name = it->substr(0, equals);
    if (equals == std::string::npos) {
      if (!environment.has(name)) warnings.push_back(concat("-x ", name, ": there is no such variable here"));
      continue;
    }
    const bool said = std::any_of(spec.env.begin(), spec.env.end(), [&](const auto& one) { return one.first == name; });
    if (!said) spec.env.emplace_back(name, it->substr(equals + 1));
  }
}

Result<void> settle_exclusions(Settings& settings) {
  constexpr std::pair<std::string_view, std::string_view> pairs[] = {{"verbose", "quiet"},
                                                                     {"hosts", "hostfile"},
                                                                     {"secret-file", "insecure"},
                                                                     {"label", "log-line-prefix-template"},
                                                                     {"bind", "numa-binding"}};
  for (const auto& [one, other] : pairs) {
    if (auto settled = settings.exclude(one, other); !settled) return settled;
  }
  if (!settings.is_on("run-path")) return settings.exclude("no-python", "module");
  return {};
}

Result<void> check_together(Draft& draft, Settings& settings, Warnings& warnings) {
  if (auto done = check_restart(draft, settings, warnings); !done) return done;
  if (auto done = check_ranks(draft, settings, warnings); !done) return done;
  if (auto done = check_remote(draft, settings, warnings); !done) return done;
  check_filters(draft, settings, warnings);
  if (auto done = check_rendezvous(draft, settings, warnings); !done) return done;
  translate_numa_binding(draft, settings, warnings);
  if (typed(settings, "start-method")) {
    warnings.emplace_back("--start-method has no effect: ddrun has one way to start a process");
  }
  if (typed(settings, "monitor-interval")) {
    warnings.emplace_back("--monitor-interval has no effect: ddrun is told at once when a worker ends");
  }
  return {};
}

void choose_program_kind(Draft& draft, const Settings& settings, Warnings& warnings) {
  ProgramSpec& program = draft.spec.program;
  if (draft.run_path) {
    program.kind = ProgramKind::python_function;
    for (const std::string_view name : {"module", "no-python"}) {
      if (typed(settings, name)) warnings.push_back(concat("--run-path wins over --", name));
    }
  } else if (draft.module) {
    program.kind = ProgramKind::python_module;
  } else if (!draft.no_python && (program.name.ends_with(".py") || program.name.ends_with(".pyz"))) {
    program.kind = ProgramKind::python_script;
  } else {
    program.kind = ProgramKind::executable;
    program.no_python = draft.no_python;
  }
}

void drop_separator(Draft& draft) {
  ProgramSpec& program = draft.spec.program;
  const bool as_torchrun = program.kind != ProgramKind::executable || draft.no_python;
  if (as_torchrun && !program.args.empty() && program.args.front() == "--") program.args.erase(program.args.begin());
}

}  // namespace ddrun::cli
