#include "ddrun/base/text.hpp"
#include "ddrun/cli/values.hpp"
#include "ddrun/cluster/detect.hpp"
#include "option_table.hpp"

// What torchrun calls rendezvous, and its options that change nothing here but may stand in a command line.

namespace ddrun::cli {

namespace {

/// Of --rdzv-backend; what each does is a row of lib/rendezvous/src/rendezvous.cpp.
constexpr const char* back_ends = "static c10d etcd etcd-v2";

Result<void> set_backend(Draft& draft, std::string_view value) {
  return assign(draft.spec.rendezvous.backend, parse_choice(value, back_ends));
}

Result<void> set_endpoint(Draft& draft, std::string_view value) {
  if (value.empty()) {
    draft.spec.rendezvous.endpoint.clear();
    return {};
  }
  if (value.find('/') != std::string_view::npos) {  // a file, if --rdzv-conf says so: settled by check_together()
    draft.spec.rendezvous.endpoint = value;
    return {};
  }
  // Several are members of etcd: that, too, is settled there.
  for (const std::string& one : split(value, ',')) {
    if (const auto endpoint = parse_endpoint(one); !endpoint) return tl::unexpected(endpoint.error());
  }
  draft.spec.rendezvous.endpoint = value;
  return {};
}

Result<void> set_nodes(Draft& draft, std::string_view value) {
  const auto nodes = parse_nnodes(value);
  if (!nodes) return tl::unexpected<Error>(nodes.error());
  draft.spec.rendezvous.min_nodes = nodes->first;
  draft.spec.rendezvous.max_nodes = nodes->second;
  return {};
}

Shown show_nodes(const Draft& draft) {
  const auto& rendezvous = draft.spec.rendezvous;
  return shown(rendezvous.min_nodes == rendezvous.max_nodes ? std::to_string(rendezvous.max_nodes)
                                                            : concat(rendezvous.min_nodes, ":", rendezvous.max_nodes));
}

/// "default" is what torchrun does without a plug-in, and what ddrun does.
Result<void> check_logs_specs(Draft& draft, std::string_view value) {
  draft.logs_specs = value;
  if (value == "default") return {};
  return fail(Errc::invalid_argument, concat("'", value,
                                             "' would be a Python plug-in, which ddrun cannot load; use default, "
                                             "--log-dir, --redirects, --tee and --label"));
}

const Option rendezvous_table[] = {
    {.name = "standalone",
     .kind = Kind::flag,
     .pet = true,
     .help = "This machine alone, on a free port, with a new job id",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.standalone, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.standalone); }},
    {.name = "nnodes",
     .metavar = "N",
     .kind = Kind::word_or_int,
     .pet = true,
     .help = "Machines, as N or MIN:MAX",
     .set = set_nodes,
     .show = show_nodes},
    {.name = "node-rank",
     .metavar = "N",
     .kind = Kind::integer,
     .pet = true,
     .help = "Rank of this machine",
     .set = [](Draft& d,
               std::string_view v) { return assign(d.spec.rendezvous.node_rank, parse_int(v, 0, 1'000'000)); },
     .show =
         [](const Draft& d) { return d.spec.rendezvous.node_rank ? shown(*d.spec.rendezvous.node_rank) : Shown{}; }},
    {.name = "rdzv-backend",
     .metavar = "NAME",
     .choices = back_ends,
     .kind = Kind::choice,
     .pet = true,
     .help = "static: node ranks as given; c10d: as they come, and as long as one machine lives; etcd: any machine may "
             "be lost. "
             "On one machine they are the same",
     .set = set_backend,
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.backend); }},
    {.name = "rdzv-endpoint",
     .metavar = "HOST[:PORT]",
     .kind = Kind::text,
     .pet = true,
     .help =
         "Where to meet; on one machine its port is MASTER_PORT, on several the coordinator's; three or more machines, "
         "as HOST:PORT,...: those of which more than half say who leads; with etcd its members",
     .set = set_endpoint,
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.endpoint); }},
    {.name = "rdzv-id",
     .metavar = "ID",
     .kind = Kind::text,
     .pet = true,
     .help = "Name of the job, in TORCHELASTIC_RUN_ID and log directories; empty: a random one",
     .set = [](Draft& d,
               std::string_view v) { return assign(d.spec.rendezvous.id, Result<std::string>(std::string(v))); },
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.id); }},
    {.name = "rdzv-conf",
     .metavar = "K=V,...",
     .kind = Kind::pairs,
     .pet = true,
     .help = "Further settings of the rendezvous",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.conf, parse_pairs(v)); },
     .show = [](const Draft& d) { return shown(pairs_text(d.spec.rendezvous.conf)); }},
    {.name = "master-addr",
     .metavar = "HOST",
     .kind = Kind::text,
     .pet = true,
     .help = "Address that workers get as MASTER_ADDR",
     .set = [](Draft& d, std::string_view v) { return assign_or_reset(d.spec.rendezvous.master_addr, v, parse_host); },
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.master_addr); }},
    {.name = "master-port",
     .metavar = "PORT",
     .kind = Kind::integer,
     .pet = true,
     .help = "Port of the store, MASTER_PORT; unset or 0: a free one",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.master_port, parse_int(v, 0, 65535)); },
     .show =
         [](const Draft& d) {
           return d.spec.rendezvous.master_port ? shown(*d.spec.rendezvous.master_port) : Shown{};
         }},
    {.name = "local-addr",
     .metavar = "HOST",
     .kind = Kind::text,
     .pet = true,
     .help = "Address of this machine, for the others",
     .set = [](Draft& d, std::string_view v) { return assign_or_reset(d.spec.rendezvous.local_addr, v, parse_host); },
     .show = [](const Draft& d) { return shown(d.spec.rendezvous.local_addr); }},
    {.name = "env-detect",
     .metavar = "SCHEME",
     .choices = cluster::detect_words,
     .kind = Kind::choice,
     .help = "Whose variables say which machine of which job this is; what is given otherwise always counts",
     .set = [](Draft& d, std::string_view v) { return assign(d.env_detect, parse_choice(v, cluster::detect_words)); },
     .show = [](const Draft& d) { return shown(d.env_detect); }},
    {.name = "keep-scheduler-env",
     .kind = Kind::flag,
     .help = "Leave the ranks that srun or mpirun gave to ddrun in the environment of workers",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.keep_scheduler_env, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.spec.keep_scheduler_env); }},
    {.name = "store-max-memory",
     .metavar = "SIZE",
     .kind = Kind::size,
     .help = "What the workers' store may take; a client that wants more is cut off; 0: no limit",
     .set = [](Draft& d, std::string_view v) { return assign(d.spec.rendezvous.store_max_memory, parse_size(v)); },
     .show = [](const Draft& d) { return shown(bytes_text(d.spec.rendezvous.store_max_memory)); }},
};

const Option torchrun_table[] = {
    {.name = "numa-binding",
     .metavar = "HOW",
     .choices = "node socket exclusive core-complex",
     .kind = Kind::choice,
     .help = "node and socket are taken as --bind=numa, exclusive and core-complex as --bind=cores",
     .set =
         [](Draft& d, std::string_view v) {
           return assign(d.numa_binding, parse_choice(v, "node socket exclusive core-complex"));
         },
     .show = [](const Draft& d) { return shown(d.numa_binding); }},
    {.name = "start-method",
     .metavar = "HOW",
     .choices = "spawn fork forkserver",
     .kind = Kind::choice,
     .pet = true,
     .help = "No effect: ddrun has one way to start a process",
     .set = [](Draft& d,
               std::string_view v) { return assign(d.start_method, parse_choice(v, "spawn fork forkserver")); },
     .show = [](const Draft& d) { return shown(d.start_method); }},
    {.name = "monitor-interval",
     .metavar = "SECONDS",
     .kind = Kind::number,
     .pet = true,
     .help = "No effect: ddrun is told when a worker ends",
     .set = [](Draft& d, std::string_view v) { return assign(d.monitor_interval, parse_positive_number(v)); },
     .show = [](const Draft& d) { return shown(number_text(d.monitor_interval)); }},
    {.name = "logs-specs",
     .metavar = "NAME",
     .kind = Kind::text,
     .help = "No effect; other names than default are of Python plug-ins and refused",
     .set = check_logs_specs,
     .show = [](const Draft& d) { return shown(d.logs_specs); }},
    {.name = "use-env",
     .kind = Kind::flag,
     .help = "Not needed: workers always find LOCAL_RANK in their environment",
     .set = [](Draft& d, std::string_view v) { return assign(d.use_env, parse_bool(v)); },
     .show = [](const Draft& d) { return shown(d.use_env); }},
};

}  // namespace

std::span<const Option> rendezvous_options() { return rendezvous_table; }
std::span<const Option> torchrun_options() { return torchrun_table; }

}  // namespace ddrun::cli
